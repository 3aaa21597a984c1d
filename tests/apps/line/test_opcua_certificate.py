"""Which certificates of clients are trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("asyncua")

from asyncua.crypto.cert_gen import (
    generate_app_certificate_signing_request,
    generate_private_key,
    generate_self_signed_app_certificate,
    sign_certificate_request,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from patchsvdd.apps.line.opcua_certificate import TrustedClients, application_uri, create_certificate, uri_in

NAMES: list[x509.GeneralName] = [x509.UniformResourceIdentifier("urn:plc")]


def test_a_certificate_in_the_folder_and_no_other(tmp_path: Path) -> None:
    trusted, _ = create_certificate(tmp_path / "trusted", "plc")
    stranger, _ = create_certificate(tmp_path / "elsewhere", "plc")
    folder = TrustedClients(trusted.parent)
    assert folder.trusts(trusted.read_bytes())
    assert not folder.trusts(stranger.read_bytes())
    assert not folder.trusts(b"")
    assert not folder.trusts(b"no certificate")
    certificate = x509.load_der_x509_certificate(trusted.read_bytes())
    assert uri_in(certificate) == application_uri("plc")


def test_one_that_an_authority_in_the_folder_signed(tmp_path: Path) -> None:
    key, authority_key = generate_private_key(), generate_private_key()
    authority = generate_self_signed_app_certificate(authority_key, "plant", {}, NAMES, extended=[])
    request = generate_app_certificate_signing_request(
        key, "plc", {}, NAMES, [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    signed = sign_certificate_request(request, authority, authority_key)
    (tmp_path / "plant.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    assert TrustedClients(tmp_path).trusts(signed.public_bytes(Encoding.DER))

    client, client_key = create_certificate(tmp_path / "client", "client")
    trusted = TrustedClients(client.parent)
    assert not trusted.trusts(signed.public_bytes(Encoding.DER))
    assert client_key.exists(), "a key beside the certificates is ignored"


@pytest.mark.parametrize("days", [-2, 2])
def test_one_that_expired_or_is_not_valid_yet(tmp_path: Path, days: int) -> None:
    key, now = generate_private_key(), datetime.now(UTC) + timedelta(days=days)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "plc")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    data = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    (tmp_path / "plc.der").write_bytes(data)
    assert not TrustedClients(tmp_path).trusts(data)


def test_one_that_is_no_authority_signs_nothing(tmp_path: Path) -> None:
    key, other_key = generate_private_key(), generate_private_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "leaf")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    leaf = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf_certificate = leaf.sign(key, hashes.SHA256())
    (tmp_path / "leaf.der").write_bytes(leaf_certificate.public_bytes(Encoding.DER))
    child = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(name).public_key(other_key.public_key())
    child = child.serial_number(2).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    trusted = TrustedClients(tmp_path)
    assert trusted.trusts(leaf_certificate.public_bytes(Encoding.DER))
    assert not trusted.trusts(child.sign(key, hashes.SHA256()).public_bytes(Encoding.DER))
