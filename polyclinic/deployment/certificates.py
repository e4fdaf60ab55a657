"""The federation's own authority and the coordinator's certificate (X.509, RFC 5280; ECDSA on NIST P-384)."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polyclinic.errors import ConfigError

CA_DAYS, SERVER_DAYS = 3650, 825
_LABEL = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
_CLOCKS = timedelta(hours=1)  # a hospital's clock may be behind the coordinator's


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def check_host(host: str) -> str:
    """The host itself. Raises ConfigError for what is neither an IP address nor a DNS name (RFC 1123)."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if len(host) > 253 or not all(map(_LABEL.fullmatch, host.split("."))) or host.split(".")[-1].isdigit():
            raise ConfigError(f"{host!r} is neither a host's name nor an IP address.") from None
    return host


def make_authority(name: str, days: int = CA_DAYS) -> Pair:
    """A self-signed authority that signs hosts' certificates only, and no authority below it; ``name`` is for people."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Polyclinic federation {name}"[:64])])
    builder = _dated(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(_pem(builder.sign(key, hashes.SHA384())), _private(key))


def make_server(authority: Pair, hosts: Sequence[str], days: int = SERVER_DAYS) -> Pair:
    """A server's certificate for these names and addresses, signed by the authority. Raises ConfigError for a bad host."""
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = load_pem_private_key(authority.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_host(hosts[0])[:64])])
    builder = _dated(subject, signer.subject, key.public_key(), days)
    names = [_general_name(check_host(host)) for host in dict.fromkeys(hosts)]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(_pem(builder.sign(signing, hashes.SHA384())), _private(key))


def read_certificate(path: Path) -> x509.Certificate:
    """Raises ConfigError when the file is missing or no certificate in PEM."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The certificate {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{path} is no certificate in PEM.") from None


def check_authority(path: Path) -> bytes:
    """The file's content. Raises ConfigError when it is no authority's certificate, or TLS itself would not take it."""
    certificate = read_certificate(path)
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise ConfigError(f"{path} is a certificate, but no authority's; ask the coordinator for its ca.crt.")
    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{path} holds a private key; a hospital gets the authority's certificate alone.")
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(f"{path} is no certificate that TLS can use.") from None
    return content


def expiry(path: Path) -> datetime:
    """When the certificate ends, in UTC. Raises ConfigError as ``read_certificate``."""
    return read_certificate(path).not_valid_after_utc


def _dated(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _CLOCKS).not_valid_after(now + timedelta(days=days))


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
