"""What a client says of a request that is not new, or that it may send twice: checked, and made names and hashes of.

Knows no protocol and no journal. A name is its tenant's alone: the core keeps tenants apart.
"""

import re
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from dunlin.limits import I32_MOST, MOST_NAME_CHARACTERS, BadField
from dunlin.messages.types import I32, i32
from services.dispatcher.settings import Settings

_KEY = re.compile(r"req-[0-9a-f]{1,16}-[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class Again:
    """`name` is the idempotency key, "" for none. `key` is the id of a request to go on with, of which `received` is
    what the client has."""

    name: str = ""
    key: str = ""
    received: I32 = field(default_factory=i32)


NEW = Again()


def again_of(name: str, key: str = "", received: I32 | None = None) -> Again:
    """The same, checked.

    Raises:
        BadField: it cannot be a name, an id, or tokens.
    """
    if not (name.isascii() and name.isprintable() and len(name) <= MOST_NAME_CHARACTERS):
        raise BadField("idempotency_key", f"must be at most {MOST_NAME_CHARACTERS} printable ASCII characters")
    if key and not _KEY.fullmatch(key):
        raise BadField("resume_request", f"{key[:40]!r} is not a request id: req-<incarnation>-<number>, both hex")
    tokens = received if received is not None else i32()
    if tokens and not key:
        raise BadField("resume_tokens", "have no meaning without resume_request")
    if tokens and not 0 <= min(tokens) <= max(tokens) <= I32_MOST:
        raise BadField("resume_tokens", "hold what is no token id")
    return Again(name, key, tokens)


def drawn_seed(tenant: str, name: str) -> int:
    """The seed of a named request whose client gave none: every dispatcher draws the same, whatever was lost."""
    parts = f"{len(tenant)} {tenant} {name}".encode()
    return int.from_bytes(blake2b(parts, digest_size=8, person=b"dunlin-seed").digest(), "little") >> 1


def digest_of(tokens: I32, settings: Settings, choice: int, requests: int = 1) -> bytes:
    """A hash of all that decides the answer, in which two of one name must agree. `requests`: of the whole call."""
    asked = repr((replace(settings, timeout_s=None), choice, requests)).encode()
    return blake2b(asked + tokens.tobytes(), digest_size=16, person=b"dunlin-asked").digest()
