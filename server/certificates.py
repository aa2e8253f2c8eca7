"""Reads the certificate, key and client CA certificates of a TLS listener, and rereads them when a file changes."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from bedrock.local_server import NotPrivateError, read_believed

log = logging.getLogger(__name__)

# The metadata key for a client certificate presented to the HTTP gateway. Its value is the gateway's secret, followed
# by the certificate in DER.
SHOWN_TO_GATEWAY = "bedrock-client-certificate-bin"


class CertificateUnusableError(Exception):
    """A certificate or key cannot be used. The message is one line for the operator."""


class _Version(NamedTuple):
    inode: int
    changed_ns: int
    size: int


class CertificateFiles:
    """A certificate with its chain, and its key, in PEM files. Thread-safe.

    `client_ca` is the file with the authorities that must have signed clients' certificates; None if clients need none.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files. Raises CertificateUnusableError if they cannot be read or do not match."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._lock = threading.Lock()  # guards _versions
        self._versions = self._seen()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials for a gRPC listener. Each new connection uses the current content of the files."""
        changed: Any = self._changed  # may return None, which the type stubs do not allow
        return grpc.dynamic_ssl_server_credentials(
            self._first, changed, require_client_authentication=self._client_ca is not None
        )

    def context(self) -> ssl.SSLContext:
        """The context for Python's `ssl`. Each new connection uses the current content of the files."""
        first = self._context

        def renew(connection: ssl.SSLObject, *_: object) -> None:
            self._changed()
            connection.context = self._context

        first.sni_callback = renew  # called for every connection, even without SNI
        return first

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The renewed certificate; None if the files are unchanged or unusable. Called by gRPC for each connection.

        A renewal writes two files. Until they match, the previous certificate stays in use, which is logged once.
        """
        with self._lock:
            try:
                versions = self._seen()
                if versions == self._versions:
                    return None
                self._versions = versions
                renewed = self._read()
            except CertificateUnusableError as error:
                log.warning("%s; the previous certificate stays in use", error)
                return None
        log.info("reloaded certificate %s", self._certificate)
        return renewed

    def _seen(self) -> tuple[_Version, ...]:
        try:
            found = [os.stat(path) for path in (self._key, self._certificate, self._client_ca) if path is not None]
        except OSError as error:
            raise _unreadable(error) from None
        return tuple(_Version(each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            pair = (_content(self._key), _content(self._certificate))
            authorities = None if self._client_ca is None else authorities_in(self._client_ca)
            # Loaded here first, because gRPC would only report that it cannot listen. The lambda prevents a prompt for
            # a password, because there may be no terminal.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate, self._key, lambda: "")
        except ssl.SSLError:
            raise CertificateUnusableError(
                f"{self._certificate} and {self._key} are not a PEM certificate and its private key"
            ) from None
        except OSError as error:
            raise _unreadable(error) from None
        if authorities is not None:
            context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET  # a resumed session would outlive the removal of its authority
            context.num_tickets = 0
        self._context = context
        return grpc.ssl_server_certificate_configuration([pair], authorities)


def authorities_in(path: Path) -> bytes:
    """The certificates in a PEM file.

    Raises OSError or CertificateUnusableError (also if other users can write to the file).
    """
    content = _content(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise CertificateUnusableError(f"{path} contains no certificates") from None
    return content


def _content(path: Path) -> bytes:
    try:
        return read_believed(path, named=True)
    except NotPrivateError as error:
        raise CertificateUnusableError(str(error)) from None


def _unreadable(error: OSError) -> CertificateUnusableError:
    return CertificateUnusableError(f"{error.filename} cannot be read: {(error.strerror or '').lower()}")


def why_untrusted(certificate: Path, key: Path, authorities: bytes, host: str) -> str:
    """Why a client that connects to `host` and trusts `authorities` would reject a certificate; "" if it would not.

    Raises CertificateUnusableError.
    """
    of_server, of_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        of_server.load_cert_chain(certificate, key, lambda: "")
    except ssl.SSLError:
        raise CertificateUnusableError(
            f"{certificate} and {key} are not a PEM certificate and its private key"
        ) from None
    except OSError as error:
        raise _unreadable(error) from None
    of_client.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = of_client.wrap_bio(to_client, to_server, server_hostname=host)
    server = of_server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return error.reason or "the handshake failed"
    return ""
