"""The certificate authorities that servers are verified with."""

from __future__ import annotations

import logging
import os
import ssl

from actors.ports.machine.resources import exhausted_resource

log = logging.getLogger(__name__)

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""The environment variables that name more authorities: a PEM file, or a directory of them with hashed names."""

SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip
"""Where distributions keep the authorities of the system. A Python that was built elsewhere does not know this."""


def client_tls() -> ssl.SSLContext:
    """Return a TLS context that trusts the authorities of certifi, of the system, and those that VARIABLES name.

    A variable whose authorities cannot be read is logged and ignored. Raises OSError if this process lacks a resource.
    Reads files, which takes some 30 ms. Safe to call from any thread.
    """
    import certifi  # noqa: PLC0415 -- only for a TLS connection

    context = ssl.create_default_context(cafile=certifi.where())
    for place in SYSTEM_FILES:
        if os.path.isfile(place):
            _trust(context, place, "the system")
    for variable in VARIABLES:
        if place := os.environ.get(variable, ""):
            _trust(context, place, variable)
    return context


def _trust(context: ssl.SSLContext, place: str, source: str) -> None:
    try:
        if os.path.isdir(place):
            context.load_verify_locations(capath=place)
        else:
            context.load_verify_locations(cafile=place)
    except OSError as error:
        if exhausted_resource(error):
            raise
        log.warning("the certificate authorities of %s cannot be read: %s", source, place)
