"""Idempotency keys and resumed requests: their checks, the seed of a retry, and the digest that detects a reused key.

Knows no protocol and no journal. An idempotency key is unique within its tenant: the core keeps tenants apart.
"""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b

from dunlin.limits import I32_MOST, MOST_NAME_CHARACTERS, InvalidField, WholeNumber
from dunlin.messages.types import I32, i32
from services.dispatcher.doors.generation.settings import RequestSettings

_LATER_SAMPLING = ("grammar", "min_tokens", "allowed_tokens", "bad_tokens", "bad_stops")
_REQUEST_ID = re.compile(r"req-[0-9a-f]{1,16}-[0-9a-f]{1,16}")


@dataclass(frozen=True, slots=True)
class RetryIdentity:
    """What makes a request a retry: `idempotency_key` ("" for none), or the request to resume.

    `resume_request` is the public id of a request at another dispatcher ("" for none), `resume_tokens` are the
    generated tokens of it that the client has, `resume_scored` counts its prompt's log-probabilities that it has.
    """

    idempotency_key: str = ""
    resume_request: str = ""
    resume_tokens: I32 = field(default_factory=i32)
    resume_scored: int = 0


NEW_REQUEST = RetryIdentity()


def parse_retry_identity(
    idempotency_key: str, resume_request: str = "", resume_tokens: I32 | None = None, resume_scored: int = 0
) -> RetryIdentity:
    """Check the fields of a `RetryIdentity`, and make one.

    Raises:
        InvalidField: a field is malformed, or what the client has comes without `resume_request`.
    """
    if not (
        idempotency_key.isascii() and idempotency_key.isprintable() and len(idempotency_key) <= MOST_NAME_CHARACTERS
    ):
        raise InvalidField("idempotency_key", f"must be at most {MOST_NAME_CHARACTERS} printable ASCII characters")
    if resume_request and not _REQUEST_ID.fullmatch(resume_request):
        text = f"{resume_request[:40]!r} is not a request id: req-<incarnation>-<number>, both hex"
        raise InvalidField("resume_request", text)
    tokens = resume_tokens if resume_tokens is not None else i32()
    if tokens and not resume_request:
        raise InvalidField("resume_tokens", "have no meaning without resume_request")
    if tokens and not 0 <= min(tokens) <= max(tokens) <= I32_MOST:
        raise InvalidField("resume_tokens", "hold what is no token id")
    if resume_scored and not resume_request:
        raise InvalidField("resume_scored", "has no meaning without resume_request")
    WholeNumber(0, I32_MOST)("resume_scored", resume_scored)
    return RetryIdentity(idempotency_key, resume_request, tokens, resume_scored)


def derived_seed(tenant: str, idempotency_key: str) -> int:
    """The seed (63 bits) of a request with an idempotency key and no seed: the same at every dispatcher.

    A retry at another dispatcher samples the same tokens, although the first dispatcher was lost with the request.
    """
    parts = f"{len(tenant)} {tenant} {idempotency_key}".encode()
    return int.from_bytes(blake2b(parts, digest_size=8, person=b"dunlin-seed").digest(), "little") >> 1


def request_digest(tokens: I32, settings: RequestSettings, choice: int, requests: int = 1) -> bytes:
    """A hash (16 bytes) of all that decides the answer; two requests of one idempotency key must agree in it.

    It is made of values and fields' names, never of classes' names: dispatchers of two versions must agree in it during
    a rolling upgrade, so what came later counts only where it is asked for. `requests` is the number of requests of the
    whole call. The timeout does not count: a retry may wait longer. Nor do objectives, which change no token.
    """
    decisive = asdict(replace(settings, timeout_s=None))
    del decisive["ttft_objective_s"], decisive["tpot_objective_s"]
    for part, names in ((decisive, ("bad_words", "adapter")), (decisive["sampling"], _LATER_SAMPLING)):
        for name in names:  # a dispatcher of an earlier version knows them not
            if not part[name]:
                del part[name]
    if decisive["sampling"]["prompt_logprobs"] is None:
        del decisive["sampling"]["prompt_logprobs"]
    values = [decisive, choice, requests]
    canonical = json.dumps(values, default=list, sort_keys=True).encode()
    return blake2b(canonical + tokens.tobytes(), digest_size=16, person=b"dunlin-asked").digest()
