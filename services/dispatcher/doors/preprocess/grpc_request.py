"""Parses a gRPC `GenerateRequest` into the same form as an OpenAI request. Knows protobuf's bytes, not gRPC."""

from dunlin.limits import InvalidField
from dunlin.messages.public import GenerateRequest, StructuredOutput
from dunlin.wire.codec import CodecError, decode
from services.dispatcher.admission.refusals import MalformedRequest
from services.dispatcher.doors.generation.grammars import (
    ANY_OBJECT,
    AskedGrammar,
    choice_grammar,
    regex_grammar,
    schema_grammar,
    written_grammar,
)
from services.dispatcher.doors.generation.idempotency import RetryIdentity, parse_retry_identity
from services.dispatcher.doors.generation.prompts import Prompt
from services.dispatcher.doors.generation.settings import parse_settings
from services.dispatcher.doors.openai.request import ParsedRequest

SETTING_FIELDS = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs", "timeout_s", "request_class",
    "tenant", "ttft_objective_s", "tpot_objective_s", "min_tokens", "bad_words", "prompt_logprobs",
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
    values = {name: getattr(request, name) for name in SETTING_FIELDS}
    values["allowed_token_ids"] = request.allowed_token_ids or None  # an empty column is one that was not sent
    asked = None if request.structured_output is None else _grammar_of(request.structured_output)
    settings = parse_settings(values, None if asked is None else asked.grammar)
    resumed = request.resume_request, request.resume_tokens, request.resume_scored
    retry = parse_retry_identity(request.idempotency_key, *resumed)
    field = "" if asked is None else asked.name
    return ParsedRequest((_prompt_of(request),), settings, request.model or None, grammar_field=field), retry


def _grammar_of(asked: StructuredOutput) -> AskedGrammar:
    found: list[AskedGrammar] = []
    if asked.json_schema:
        found.append(schema_grammar("structured_output.json_schema", asked.json_schema))
    if asked.json_object:
        found.append(schema_grammar("structured_output.json_object", ANY_OBJECT))
    if asked.regex:
        found.append(regex_grammar("structured_output.regex", asked.regex))
    if asked.choice:
        found.append(choice_grammar("structured_output.choice", asked.choice))
    if asked.grammar:
        found.append(written_grammar("structured_output.grammar", asked.grammar))
    if len(found) != 1:
        raise InvalidField("structured_output", "must have exactly one of its fields")
    return found[0]


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
