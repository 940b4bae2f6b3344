"""The gRPC door's request out of its bytes: the same settings and prompts as of OpenAI's. Knows no gRPC."""

from dunlin.limits import BadField
from dunlin.messages.public import GenerateRequest
from dunlin.wire.codec import CodecError, decode
from services.dispatcher.again import Again, again_of
from services.dispatcher.openai_request import Asked
from services.dispatcher.prompts import Prompt
from services.dispatcher.refusals import Malformed
from services.dispatcher.settings import settings_of

SETTINGS = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "timeout_s", "request_class",
    "tenant",
)  # fmt: skip


def generate_of(data: bytes) -> tuple[Asked, Again]:
    """A GenerateRequest.

    Raises:
        BadField: what cannot be taken, by name.
        Malformed: it is no such message.
    """
    try:
        request = decode(GenerateRequest.__name__, data)
    except CodecError as error:
        raise Malformed(str(error)) from error
    assert isinstance(request, GenerateRequest)
    settings = settings_of({name: getattr(request, name) for name in SETTINGS})
    again = again_of(request.idempotency_key, request.resume_request, request.resume_tokens)
    return Asked((_prompt_of(request),), settings), again


def _prompt_of(request: GenerateRequest) -> Prompt:
    given: list[Prompt] = []
    if request.prompt is not None:
        given.append(request.prompt)
    if request.prompt_tokens:
        given.append(request.prompt_tokens)
    if request.messages:
        given.append(request.messages)
    if len(given) != 1:
        raise BadField("prompt", "give exactly one of prompt, prompt_tokens and messages")
    return given[0]
