"""Whom certificates of clients stand for, where gRPC tells less than they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.auth.issuers.certificate_names import has_cut_name
from server.auth.issuers.client_certificates import ClientCertificates
from server.auth.principals import Caller, Role, principals_from_tables

ADA = principals_from_tables({"ada": {"roots": ["/srv"]}})["ada"]
KEYS = {"uri": "peer_uri", "dns": "peer_dns", "email": "peer_email", "cn": "x509_common_name"}
KINDS: dict[str, Any] = {"uri": x509.UniformResourceIdentifier, "dns": x509.DNSName, "email": x509.RFC822Name}


def certificate(kind: str, name: str) -> bytes:
    """A certificate with this name."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime(2026, 1, 1, tzinfo=UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name if kind == "cn" else "somebody")])
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if kind != "cn":
        made = made.add_extension(x509.SubjectAlternativeName([KINDS[kind](name)]), critical=False)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rest", ["", "\0.evil.example", "\0"])
def test_a_name_with_a_zero_stands_for_nobody_though_grpc_tells_only_what_is_before_it(kind: str, rest: str) -> None:
    known = ClientCertificates({f"{kind}:ada.example.org": ADA})
    pem = certificate(kind, f"ada.example.org{rest}")
    connection = {"x509_pem_cert": [pem], KEYS[kind]: [b"ada.example.org"]}
    found = None if rest else Caller("ada", Role.USER)
    assert known.caller_of(None, connection) == found
    assert known.caller_of(Caller("ada", Role.USER), connection) == found


def test_what_is_no_certificate_is_not_trusted() -> None:
    pem = certificate("cn", "ada")
    assert not has_cut_name(pem)
    for wrong in (b"", pem[:200], pem.replace(b"CERTIFICATE", b"LETTER"), b"-----BEGIN CERTIFICATE-----\nMIM=\n"):
        assert has_cut_name(wrong)
