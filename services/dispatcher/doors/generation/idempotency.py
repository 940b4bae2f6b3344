"""What a client says of a request that is not new, or that it may send twice: checked, and made names and hashes of.

Knows no protocol and no journal. A name is its tenant's alone: the core keeps tenants apart.
"""

import re
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from dunlin.limits import I32_MOST, MOST_NAME_CHARACTERS, InvalidField
from dunlin.messages.types import I32, i32
from services.dispatcher.doors.generation.settings import RequestSettings

_KEY = re.compile(r"req-[0-9a-f]{1,16}-[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class RetryIdentity:
    """`name` is the idempotency key, "" for none. `key` is the id of a request to go on with, of which `received` is
    what the client has."""

    idempotency_key: str = ""
    resume_request: str = ""
    resume_tokens: I32 = field(default_factory=i32)


NEW_REQUEST = RetryIdentity()


def parse_retry_identity(name: str, key: str = "", received: I32 | None = None) -> RetryIdentity:
    """The same, checked.

    Raises:
        InvalidField: it cannot be a name, an id, or tokens.
    """
    if not (name.isascii() and name.isprintable() and len(name) <= MOST_NAME_CHARACTERS):
        raise InvalidField("idempotency_key", f"must be at most {MOST_NAME_CHARACTERS} printable ASCII characters")
    if key and not _KEY.fullmatch(key):
        raise InvalidField("resume_request", f"{key[:40]!r} is not a request id: req-<incarnation>-<number>, both hex")
    tokens = received if received is not None else i32()
    if tokens and not key:
        raise InvalidField("resume_tokens", "have no meaning without resume_request")
    if tokens and not 0 <= min(tokens) <= max(tokens) <= I32_MOST:
        raise InvalidField("resume_tokens", "hold what is no token id")
    return RetryIdentity(name, key, tokens)


def derived_seed(tenant: str, name: str) -> int:
    """The seed of a named request whose client gave none: every dispatcher draws the same, whatever was lost."""
    parts = f"{len(tenant)} {tenant} {name}".encode()
    return int.from_bytes(blake2b(parts, digest_size=8, person=b"dunlin-seed").digest(), "little") >> 1


def request_digest(tokens: I32, settings: RequestSettings, choice: int, requests: int = 1) -> bytes:
    """A hash of all that decides the answer, in which two of one name must agree. `requests`: of the whole call."""
    asked = repr((replace(settings, timeout_s=None), choice, requests)).encode()
    return blake2b(asked + tokens.tobytes(), digest_size=16, person=b"dunlin-asked").digest()
