"""Certificates of OPC UA servers and clients."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.extras import require
from patchsvdd.core.files import atomic_write, output_errors

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from cryptography.x509.verification import Store

DAYS = 3650
SUFFIXES = (".der", ".pem", ".crt", ".cer")


def application_uri(name: str) -> str:
    """The URI of an application on this machine, which its certificate must contain."""
    return f"urn:{socket.gethostname()}:patchsvdd:{name}"


def create_certificate(
    folder: Path, name: str, addresses: Sequence[str] = (), *, days: int = DAYS
) -> tuple[Path, Path]:
    """Write a self-signed certificate and its private key; returns both paths.

    ``name`` is that of the server's object (`name` of [opcua]) or of a client. ``addresses`` are the host names and IP
    addresses under which clients reach the server; this machine's name is always among them. Only the owner can read
    the key. Existing files are not replaced.
    """
    require("asyncua", "opcua", "a certificate")
    from asyncua.crypto.cert_gen import (
        dump_private_key_as_pem,
        generate_private_key,
        generate_self_signed_app_certificate,
    )
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID

    certificate_path, key_path = folder / f"{name}-certificate.der", folder / f"{name}-key.pem"
    for path in (certificate_path, key_path):
        if path.exists():
            raise ConfigError(f"{path} exists; delete it to create a new certificate, which clients must trust again")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(application_uri(name))]
    for address in dict.fromkeys((socket.gethostname(), *addresses)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    key = generate_private_key()
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = generate_self_signed_app_certificate(
        key, f"patchsvdd {name}", {"organizationName": "patchsvdd"}, names, extended=usages, days=days
    )
    with atomic_write(key_path) as file:
        if hasattr(os, "fchmod"):  # not on Windows
            os.fchmod(file.fileno(), 0o600)
        file.write(dump_private_key_as_pem(key))
    with atomic_write(certificate_path) as file:
        file.write(certificate.public_bytes(Encoding.DER))
    return certificate_path, key_path


def load_certificate(path: Path) -> Certificate:
    """The certificate in a DER or PEM file; raises ConfigError if there is none."""
    from cryptography import x509

    try:
        data = path.read_bytes()
        return x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is neither DER nor PEM"
        raise ConfigError(f"cannot read the certificate {path}: {reason}") from None


def uri_in(certificate: Certificate) -> str | None:
    """The application URI that a certificate is for."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    return next(iter(names.get_values_for_type(x509.UniformResourceIdentifier)), None)


def days_left(certificate: Certificate) -> float:
    """Days until a certificate expires; negative if it has."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86400


class TrustedClients:
    """The certificates in a folder: of clients, or of authorities that sign clients' certificates."""

    def __init__(self, folder: Path) -> None:
        from cryptography.x509.verification import Store

        if not folder.is_dir():
            raise ConfigError(f"`trusted_clients` of [opcua] must be a folder with certificates; {folder} is none")
        with output_errors(folder, action="reading"):
            paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
            keys = {path for path in paths if b"PRIVATE KEY-----" in path.read_bytes()}
        self._certificates = [load_certificate(path) for path in paths if path not in keys]
        if not self._certificates:
            raise ConfigError(f"`trusted_clients` of [opcua]: {folder} has no certificate, so nobody could connect")
        self._store: Store = Store(self._certificates)

    def trusts(self, data: bytes) -> bool:
        """Whether a client's certificate is in the folder, or signed by one that is, and is valid today."""
        from cryptography import x509
        from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, VerificationError

        try:
            certificate = x509.load_der_x509_certificate(data)
        except ValueError:
            return False
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            return False
        if certificate in self._certificates:
            return True

        def require_authority(_policy: object, _certificate: Certificate, extension: x509.BasicConstraints) -> None:
            if not extension.ca:
                raise ValueError("not an authority")

        authority = ExtensionPolicy.permit_all().require_present(
            x509.BasicConstraints, Criticality.AGNOSTIC, require_authority
        )
        policies = PolicyBuilder().extension_policies(ca_policy=authority, ee_policy=ExtensionPolicy.permit_all())
        try:
            policies.store(self._store).build_client_verifier().verify(certificate, [])
        except VerificationError:
            return False
        return True
