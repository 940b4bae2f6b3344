"""Makes a private CA for one cluster and issues its certificates, which `dunlin/wire/security.py` reads.

The package `cryptography` is needed to make them, not to use them. A certificate carries its holder's role and name as
DNS names under `dunlin` (`identity_names`), so that the dialling side checks them in the TLS handshake itself.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dunlin.runtime.replace_file import replace_file

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, GeneralName

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
CA_KEY = "ca-key.pem"
"""The CA's private key: it belongs where certificates are issued, and on no node of the cluster."""

ROLES = ("dispatcher", "global_manager", "instance", "kvstore", "monitor", "etcd", "client")
ANY_NAME = "*"
CA_DAYS, LEAF_DAYS = 3650, 825

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HASHED = "name-"
_HOST_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_CLOCKS_APART = timedelta(minutes=5)


class CertificateError(Exception):
    """A certificate cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """The holder of a certificate: `name` (`*`: any name) in `role`, reachable at `hosts` (names and IP addresses).

    It is valid for `days`.
    """

    role: str
    name: str
    hosts: tuple[str, ...] = ()
    days: int = LEAF_DAYS


def identity_names(role: str, name: str) -> tuple[str, str]:
    """The DNS names in a certificate that name its holder: `instance.dunlin`, and `instance-0.instance.dunlin`.

    A name that cannot be a label of a DNS name is replaced by its hash; `*` stays as it is.

    Raises:
        CertificateError: the role is unknown, or the name is empty.
    """
    if role not in ROLES:
        raise CertificateError(f"no role {role!r}: choose one of {', '.join(ROLES)}")
    if not name:
        raise CertificateError("a certificate needs a name, or '*' for any name of the role")
    of_role = f"{role.replace('_', '-')}.dunlin"
    is_label = name == ANY_NAME or (_LABEL.fullmatch(name) and not name.startswith(_HASHED))
    label = name if is_label else _HASHED + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return of_role, f"{label}.{of_role}"


def is_host(name: str) -> bool:
    """Whether a certificate can name this host; `*.` before it: any host below it."""
    if len(name) > 253 or name == "dunlin" or name.endswith(".dunlin"):
        return False
    return all(_HOST_PART.fullmatch(part) for part in name.removeprefix("*.").split("."))


def make_ca(directory: Path, force: bool = False, days: int = CA_DAYS) -> None:
    """Make a CA in `directory`: `ca.pem`, and its key in `ca-key.pem` (mode 0600).

    Raises:
        CertificateError: a CA exists and `force` is not set, or the files cannot be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    _check_absent((directory / CA, directory / CA_KEY), force)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(f"dunlin CA {os.urandom(4).hex()}")
    builder = _builder(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    _write(directory, CA_KEY, _private(key), 0o600)
    _write(directory, CA, _public(_signed(builder, key, key.public_key())), 0o644)


def issue_certificate(ca: Path, out: Path, leaf: CertificateRequest, force: bool = False) -> None:
    """Issue a certificate of the CA in `ca` into `out`: `ca.pem`, `cert.pem` and `key.pem` (mode 0600).

    Raises:
        CertificateError: the CA is missing, role, name or a host is invalid, the files exist and `force` is not set, or
            they cannot be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names = [x509.DNSName(name) for name in identity_names(leaf.role, leaf.name)]
    hosts = [_host(host) for host in leaf.hosts]
    _check_absent((out / CERTIFICATE, out / KEY), force)
    authority, authority_key = _load_ca(ca)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _common_name(f"dunlin {leaf.role} {leaf.name if leaf.name.isprintable() else names[1].value}"),
        authority.subject,
        key.public_key(),
        leaf.days,
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([*names, *hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, critical=False)
    _write(out, KEY, _private(key), 0o600)
    _write(out, CERTIFICATE, _public(_signed(builder, authority_key, authority_key.public_key())), 0o644)
    _write(out, CA, _public(authority), 0o644)


def _load_ca(directory: Path) -> "tuple[Certificate, Any]":
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((directory / CA).read_bytes())
        return certificate, load_pem_private_key((directory / CA_KEY).read_bytes(), password=None)
    except FileNotFoundError as error:
        raise CertificateError(f"no CA in {directory}: {error.filename} is missing; make one first") from error
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"cannot read the CA in {directory}: {error}") from error


def _check_absent(paths: Sequence[Path], force: bool) -> None:
    for path in paths:
        if path.exists() and not force:
            raise CertificateError(f"{path} exists already: choose another directory, or say --force to replace it")


def _host(text: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not is_host(text):
        text = f"{text!r} is no host name (those under 'dunlin' are for holders' names) and no IP address"
        raise CertificateError(text)
    return x509.DNSName(text)


def _common_name(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(subject: Any, issuer: Any, public_key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCKS_APART).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _signed(builder: Any, key: Any, issuer_key: Any) -> "Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    signed: Certificate = builder.add_extension(identifier, critical=False).sign(key, SHA256())
    return signed


def _usage(signs_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text


def _public(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(directory: Path, name: str, data: bytes, mode: int) -> None:
    path = directory / name
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, data, mode)
    except OSError as error:
        raise CertificateError(f"cannot write {path}: {error.strerror or error}") from error
