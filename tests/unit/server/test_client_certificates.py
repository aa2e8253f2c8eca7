"""Whom certificates of clients stand for, where gRPC tells less than they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from server.auth.authentication import Authentication, ClientCertificates, certificate_details
from server.auth.principals import Caller, PrincipalTable, Role, principals_from_tables

ADA = principals_from_tables({"ada": PrincipalTable(roots=("/srv",))})["ada"]
KEYS = {"uri": "peer_uri", "dns": "peer_dns", "email": "peer_email", "cn": "x509_common_name"}
KINDS: dict[str, Any] = {"uri": x509.UniformResourceIdentifier, "dns": x509.DNSName, "email": x509.RFC822Name}


BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = BEGINS + timedelta(days=1)


def certificate(kind: str, name: str, ends: datetime = ENDS) -> bytes:
    """A certificate with this name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name if kind == "cn" else "somebody")])
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(min(BEGINS, ends - timedelta(days=1))).not_valid_after(ends)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if kind != "cn":
        made = made.add_extension(x509.SubjectAlternativeName([KINDS[kind](name)]), critical=False)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rest", ["", "\0.evil.example", "\0"])
def test_a_name_with_a_zero_stands_for_nobody_though_grpc_tells_only_what_is_before_it(kind: str, rest: str) -> None:
    known = ClientCertificates({f"{kind}:ada.example.org": ADA}, now=BEGINS.timestamp)
    pem = certificate(kind, f"ada.example.org{rest}")
    connection = {"x509_pem_cert": [pem], KEYS[kind]: [b"ada.example.org"]}
    found = None if rest else Caller("ada", Role.USER, certificate_ends=ENDS.timestamp())
    assert known.caller_of(None, connection) == found
    assert known.caller_of(Caller("ada", Role.USER), connection) == found


def test_what_is_no_certificate_is_not_trusted() -> None:
    pem = certificate("cn", "ada")
    assert certificate_details(pem)
    for wrong in (b"", pem[:200], pem.replace(b"CERTIFICATE", b"LETTER"), b"-----BEGIN CERTIFICATE-----\nMIM=\n"):
        assert certificate_details(wrong) is None


@pytest.mark.parametrize("year", [1970, 2026, 2049, 2050, 9999])
def test_the_end_of_a_certificate_is_read_in_both_of_its_forms(year: int) -> None:
    ends = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    found = certificate_details(certificate("dns", "ada.example.org", ends))
    assert found is not None
    assert found.expires_at == ends.timestamp()


@pytest.mark.parametrize("by_token", [None, Caller("ada", Role.USER)])
def test_what_was_begun_with_a_certificate_is_accepted_until_it_expires(by_token: Caller | None) -> None:
    """However long the connection stays open, on which it was valid once."""
    now = [ENDS.timestamp() - 1]
    known = ClientCertificates({"cn:ada": ADA}, now=lambda: now[0])
    authentication = Authentication("t" * 43, None, {"ada": ADA}, now_ms=lambda: int(now[0] * 1000))
    connection = {"x509_pem_cert": [certificate("cn", "ada")], "x509_common_name": [b"ada"]}
    who = known.caller_of(by_token, connection)
    assert who is not None
    assert who.ends
    assert authentication.accepts(who)
    now[0] += 1
    assert not authentication.accepts(who)
    assert known.caller_of(by_token, connection) is None


def test_a_gateways_certificate_says_nothing_so_its_end_ends_nothing() -> None:
    known = ClientCertificates({"cn:ada": ADA}, now=lambda: ENDS.timestamp() + 1)
    connection = {"x509_pem_cert": [certificate("cn", "gateway")], "x509_common_name": [b"gateway"]}
    assert known.caller_of(Caller("ada", Role.USER), connection) == Caller("ada", Role.USER)
