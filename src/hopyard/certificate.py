"""The certificate of a run, by which both ends of a connection prove to each other that they belong to it.

There is one for each run, made by its driver and used by everybody: as a server's, as a client's, and as the only
authority that either trusts. So it proves that its holder belongs to this run, and not which slot it is. It is signed
by its own key and travels with it, as one text, by the same ways as the run's other keys (`core.messages.Setup`).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_HEAD = "-----BEGIN CERTIFICATE-----"
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The key of a run ends with its driver. A shorter time would only make it depend on the clocks of hosts."""


def make_certificate() -> str:
    """Return a new key and its certificate, as PEM. Takes about 1 ms, and 50 ms to import `cryptography` first."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hopyard run")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        # no authority: its key signs connections, and nobody else's certificate
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (private + certificate.public_bytes(serialization.Encoding.PEM)).decode()


def tls(certificate: str, *, server: bool) -> ssl.SSLContext:
    """Return a context of TLS 1.3 between ends that both have this certificate.

    Args:
        certificate: what `make_certificate` returned.
        server: whether it is for the end that is dialled.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names of hosts prove nothing here; `prove_same` compares the certificate itself
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=_public(certificate))
    with _as_file(certificate) as path:
        context.load_cert_chain(path)
    if server:
        context.num_tickets = 0  # connections are kept, not resumed
    return context


def prove_same(theirs: bytes, certificate: str) -> None:
    """Compare the certificate that the other end showed (DER): it is to be exactly this one, not only one that the
    library lets pass.

    Raises:
        ConnectionError: it is another.
    """
    if not hmac.compare_digest(theirs, ssl.PEM_cert_to_DER_cert(_public(certificate))):
        raise ConnectionError("the other end has a certificate that is not this run's")


def _public(certificate: str) -> str:
    return certificate[certificate.index(_HEAD) :]


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a file with this text, as `ssl` reads keys from files alone. The file is in memory where the
    system has that; else only this user can read it, and it is gone at once."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("key", os.MFD_CLOEXEC), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="hopyard-key-") as folder:  # 0700
        path = Path(folder, "key")
        path.touch(0o600)
        path.write_text(text)
        yield str(path)
