"""A certificate authority for tests, and certificates of servers on this machine."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for localhost and 127.0.0.1."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Test Authority")
        self.certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def context(self) -> ssl.SSLContext:
        """A client's context that trusts this authority alone."""
        pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        return ssl.create_default_context(cadata=pem)

    def write(self, certificate: Path, key: Path, *, password: bytes | None = None) -> int:
        """Writes a new pair; returns its serial number."""
        private = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signed = (
            _builder(_name("localhost"), self._name, private.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        pem = serialization.Encoding.PEM
        key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption))
        certificate.write_bytes(signed.public_bytes(pem))
        return signed.serial_number


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
