"""Parses a gRPC `GenerateRequest` into the same form as an OpenAI request. Knows protobuf's bytes, not gRPC."""

from dunlin.limits import InvalidField
from dunlin.messages.public import GenerateRequest
from dunlin.wire.codec import CodecError, decode
from services.dispatcher.admission.refusals import MalformedRequest
from services.dispatcher.doors.generation.idempotency import RetryIdentity, parse_retry_identity
from services.dispatcher.doors.generation.prompts import Prompt
from services.dispatcher.doors.generation.settings import parse_settings
from services.dispatcher.doors.openai.request import ParsedRequest

SETTING_FIELDS = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "timeout_s", "request_class",
    "tenant", "ttft_objective_s", "tpot_objective_s",
)  # fmt: skip
"""Fields of a GenerateRequest that are settings, by the settings' own names."""


def parse_generate(data: bytes) -> tuple[ParsedRequest, RetryIdentity]:
    """The parsed request and its retry identity.

    Raises:
        InvalidField: a field's value is not allowed.
        MalformedRequest: the bytes are no GenerateRequest.
    """
    try:
        request = decode(GenerateRequest.__name__, data)
    except CodecError as error:
        raise MalformedRequest(str(error)) from error
    assert isinstance(request, GenerateRequest)
    settings = parse_settings({name: getattr(request, name) for name in SETTING_FIELDS})
    retry = parse_retry_identity(request.idempotency_key, request.resume_request, request.resume_tokens)
    return ParsedRequest((_prompt_of(request),), settings), retry


def _prompt_of(request: GenerateRequest) -> Prompt:
    given: list[Prompt] = []
    if request.prompt is not None:
        given.append(request.prompt)
    if request.prompt_tokens:
        given.append(request.prompt_tokens)
    if request.messages:
        given.append(request.messages)
    if len(given) != 1:
        raise InvalidField("prompt", "give exactly one of prompt, prompt_tokens and messages")
    return given[0]
