"""Certificates of a test authority, for the loopback."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority that signs certificates and writes them into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self.certificate = self._write(f"{name}.pem", own.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, passphrase: bytes | None = None) -> tuple[Path, Path]:
        """Issue a certificate for 127.0.0.1, and return its file and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = (
            self._builder(subject, key)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = (
            serialization.BestAvailableEncryption(passphrase)
            if passphrase
            else serialization.NoEncryption()
        )
        key_file = self._folder / f"{name}.key"
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )
        return self._write(f"{name}.pem", signed), key_file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            subject_name=subject, issuer_name=self._name, public_key=key.public_key()
        )
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(
            now + timedelta(days=1)
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self._folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path
