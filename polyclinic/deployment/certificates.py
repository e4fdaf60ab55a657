"""The federation's own authority, the coordinator's certificate, and the key by which the SuperLink knows a node.

Certificates are of X.509 (RFC 5280), nodes' keys in OpenSSH's form, as Flower reads them; all keys are ECDSA on NIST P-384.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polyclinic.errors import ConfigError

CA_DAYS, SERVER_DAYS = 3650, 825
WARNING_DAYS = 30
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
    builder = _certificate_builder(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(_pem(builder.sign(key, hashes.SHA384())), _private(key))


def make_server(authority: Pair, hosts: Sequence[str], days: int = SERVER_DAYS) -> Pair:
    """A server's certificate for these names and addresses, signed by the authority, with its key.

    Args:
        authority: The authority's certificate and key.
        hosts: Names and IP addresses, of which the first is the certificate's common name.
        days: For how many days it is valid.

    Raises:
        ConfigError: A host is no name or address.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = load_pem_private_key(authority.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, check_host(hosts[0])[:64])])
    builder = _certificate_builder(subject, signer.subject, key.public_key(), days)
    names = [_general_name(check_host(host)) for host in dict.fromkeys(hosts)]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(_pem(builder.sign(signing, hashes.SHA384())), _private(key))


def authority_of(key: bytes, source: str, authorities: Sequence[x509.Certificate]) -> Pair:
    """The authority whose private key this is.

    Args:
        key: The private key in PEM, without a password.
        source: Where the key was read, for the message.
        authorities: The certificates of the authorities, one of which the key may belong to.

    Raises:
        ConfigError: The key cannot be read, or is that of none of them.
    """
    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{source} is not a private key in PEM without a password.") from None
    for authority in authorities:
        if authority.public_key() == public:
            return Pair(_pem(authority), key)
    raise ConfigError(f"{source} is the key of another authority than ca.crt's.")


def issuer(server: Path, ca: Path) -> x509.Certificate:
    """The authority of ``ca`` that signed the server's certificate. Raises ConfigError when none of them did."""
    certificate = read_certificates(server)[0]
    for authority in read_certificates(ca):
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return authority
    raise ConfigError(f"No authority of {ca} signed {server}; `polyclinic coordinator renew` makes a new one.")


def fingerprint(certificate: x509.Certificate) -> str:
    """Its SHA-256, in the form of ``openssl x509 -fingerprint``."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All of the file, at least one. Raises ConfigError when the file is missing or holds no certificates in PEM."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The certificate {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ConfigError(f"{path} is not a certificate in PEM.") from None


def check_authority(path: Path, next_step: str = "ask the coordinator's operator for its ca.crt") -> bytes:
    """The file's content: one authority's certificate, or two while one takes the other's place.

    Raises ConfigError, with ``next_step``, when a certificate is no authority's, TLS itself would not take it, or all have
    expired.
    """
    authorities = read_certificates(path)
    try:
        is_authority = all(map(_is_authority, authorities))
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise ConfigError(f"{path} is a certificate, but no authority's; {next_step}.")
    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{path} holds a private key; a hospital gets the authority's certificate alone.")
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise ConfigError(f"{path} is not a certificate that TLS can use; {next_step}.") from None
    _check_dates(path, max(authorities, key=lambda authority: authority.not_valid_after_utc), next_step)
    return content


def check_server(certificate: Path, key: Path, ca: Path) -> None:
    """Checks that a coordinator can serve with these files.

    Args:
        certificate: The server's certificate, in PEM.
        key: Its private key, in PEM.
        ca: The certificates of the authorities, in PEM.

    Raises:
        ConfigError: A file is damaged or expired, or they do not fit each other.
    """
    check_authority(ca, "restore it from a backup")
    described = read_certificates(certificate)[0]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise ConfigError(
            f"{certificate} and {key} are not a certificate and its key; `polyclinic coordinator renew` makes both anew."
        ) from None
    _check_dates(certificate, described, "`polyclinic coordinator renew` makes a new one")
    _check_dates(ca, issuer(certificate, ca), "a new authority must take its place")


def expiry(path: Path) -> datetime:
    """The next end of the file's certificates, in UTC; the last, where all are over. Raises as ``read_certificates``."""
    ends = [certificate.not_valid_after_utc for certificate in read_certificates(path)]
    return min((end for end in ends if end > datetime.now(UTC)), default=max(ends))


def days_left(path: Path) -> float:
    """Days until ``expiry``, negative after that. Raises ConfigError as ``read_certificates``."""
    return (expiry(path) - datetime.now(UTC)) / timedelta(days=1)


def expiry_warnings(paths: Sequence[Path]) -> list[str]:
    """A sentence for each certificate that ends within WARNING_DAYS. Raises ConfigError as ``read_certificates``."""
    return [_expiry_warning(path) for path in paths if days_left(path) < WARNING_DAYS]


def warn_daily(paths: Sequence[Path], warn: Callable[[str], object]) -> None:
    """Call ``warn`` with each of ``expiry_warnings`` now and once a day, in a thread that ends with the process."""

    def watch() -> None:
        while True:
            try:
                warnings = expiry_warnings(paths)
            except ConfigError as error:
                warnings = [str(error)]
            for warning in warnings:
                warn(warning)
            time.sleep(24 * 3600)

    threading.Thread(target=watch, daemon=True).start()


def failed_verification(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refusal of a certificate that lies behind the error, None for other errors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause


def certificate_problem(error: ssl.SSLCertVerificationError) -> str:
    """Why the coordinator's certificate does not hold, and the next step; goes on a sentence."""
    expired, not_yet_valid, other_host, other_address = 10, 9, 62, 64  # openssl/x509_vfy.h
    if error.verify_code in (expired, not_yet_valid):
        next_step = (
            f"if this machine's clock, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, is right, the coordinator's operator runs "
            "`polyclinic coordinator renew` and starts it again"
        )
    elif error.verify_code in (other_host, other_address):
        next_step = (
            "the coordinator's operator adds that name to `hosts` of coordinator.toml and renews the certificate"
        )
    else:
        next_step = "another authority than that of ca.crt signed it, so ask the coordinator's operator for its ca.crt"
    return f"its certificate does not hold ({error.verify_message.rstrip('.')}): {next_step}"


@dataclass(frozen=True)
class NodeKey:
    """``private`` is a file's content; ``public`` one line."""

    private: bytes
    public: str


def make_node_key(site: str) -> NodeKey:
    """A new pair; the site's name becomes the public key's comment."""
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return NodeKey(private, f"{line} {'-'.join(site.split())}")


def read_public_key(path: Path) -> bytes:
    """The key as Flower's control takes it (PEM). Raises ConfigError for anything but a public P-384 key of OpenSSH's form."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The public key {path} cannot be read: {error.strerror}.") from None
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{path} is a private key; the hospital keeps that and sends its node.pub.")
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{path} is not a public key of OpenSSH's form.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError(f"{path} is not an ECDSA key on NIST P-384, as `polyclinic hospital init` makes it.")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_private_key(path: Path) -> None:
    """Raises ConfigError for anything but a private P-384 key of OpenSSH's form without a passphrase."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError(
            f"{path} is not a private key, or a damaged one; restore it from a backup, or make a new one with `polyclinic "
            "hospital rekey`, which the coordinator's operator then registers."
        )


def _expiry_warning(path: Path) -> str:
    next_step = (
        "the coordinator's operator makes a new authority (`polyclinic coordinator authority new`), or drops this one"
        if _is_authority(read_certificates(path)[0])
        else "`polyclinic coordinator renew` makes a new one"
    )
    return f"The certificate {path} ends in {days_left(path):.0f} days, on {expiry(path):%Y-%m-%d}; {next_step}."


def _is_authority(certificate: x509.Certificate) -> bool:
    return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)


def _check_dates(path: Path, certificate: x509.Certificate, next_step: str) -> None:
    now = datetime.now(UTC)
    clock = f"by this machine's clock it is {now:%Y-%m-%d %H:%M} UTC"
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}, and {clock}; {next_step}.")
    if now < certificate.not_valid_before_utc:
        raise ConfigError(f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, but {clock}.")


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
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
