"""From a caller's arguments to a `GenerateRequest`. Types are checked here, ranges by the server."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from dunlin.client.errors import InvalidRequest
from dunlin.messages.public import ChatMessage, GenerateRequest, StructuredOutput
from dunlin.messages.types import I32, I64_LEAST, I64_MOST, RequestClass, i32

Prompt = str | Sequence[int]
"""Text, or token ids."""

Message = ChatMessage | tuple[str, str] | Mapping[str, str]
"""One chat message: `ChatMessage`, `(role, content)` or `{"role": …, "content": …}`."""


class Options(TypedDict, total=False):
    """Options of a generation; one that is missing or None has the server's default.

    `max_tokens`: by default what the context leaves. `temperature` 0 is greedy. `seed`: the same one draws the same
    tokens. `logprobs`: 0 for the chosen token's, n for the n best besides; `prompt_logprobs` alike of the prompt's.
    `timeout_s`: the server gives up then. `ttft_objective_s` and `tpot_objective_s`: seconds within which the first
    token, and each further one, should come; the server refuses those below its least. `idempotency_key`: the tenant's
    own name for the request; sent again with the same one, it gets the same answer. `structured_output` is what the
    text must match: one of `{"json": schema}`
    (a dict, or its text), `{"json_object": True}`, `{"regex": …}`, `{"choice": […]}` and `{"grammar": …}`. No stop ends
    the text before `min_tokens`; tokens outside `allowed_token_ids`, and `bad_words`, are not generated. `model` names
    the model that is served, or one of its adapters; "": the model itself.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    timeout_s: float | None
    request_class: RequestClass
    tenant: str
    idempotency_key: str
    ttft_objective_s: float | None
    tpot_objective_s: float | None
    structured_output: StructuredOutput | Mapping[str, Any] | None
    min_tokens: int | None
    allowed_token_ids: Sequence[int]
    bad_words: Sequence[str]
    prompt_logprobs: int | None
    model: str


INTEGER_OPTIONS = ("max_tokens", "top_k", "seed", "logprobs", "min_tokens", "prompt_logprobs")
NUMBER_OPTIONS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "timeout_s",
    "ttft_objective_s", "tpot_objective_s",
)  # fmt: skip


def build_request(prompt: Prompt | None, messages: Sequence[Message] | None, options: Options) -> GenerateRequest:
    """The request to send.

    Raises:
        InvalidRequest: not exactly one of `prompt` and `messages`, an unknown option, or a value of a wrong type.
    """
    if (prompt is None) == (messages is None):
        raise InvalidRequest("give exactly one of prompt and messages")
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, value in values.items():
        _check_number(name, value)
    values["stop"] = _texts("stop", values.get("stop"))
    for name in ("stop_token_ids", "allowed_token_ids"):
        values[name] = _ids(name, values.get(name) or ())
    values["bad_words"] = _texts("bad_words", values.get("bad_words"))
    values["structured_output"] = _structured_output(values.get("structured_output"))
    if isinstance(prompt, str):
        values["prompt"] = prompt
    elif prompt is not None:
        values["prompt_tokens"] = _ids("prompt", prompt)
    else:
        values["messages"] = _messages(messages or ())
    try:
        return GenerateRequest(**values)
    except TypeError as error:
        raise InvalidRequest(str(error)) from error


def _check_number(name: str, value: object) -> None:
    """Raise InvalidRequest for a number that protobuf cannot encode."""
    if name in INTEGER_OPTIONS and (not isinstance(value, int) or not I64_LEAST <= value <= I64_MOST):
        raise InvalidRequest(f"{name}: must be a whole number of at most 64 bits, not {value!r:.40}")
    if name in NUMBER_OPTIONS and not isinstance(value, int | float):
        raise InvalidRequest(f"{name}: must be a number, not {value!r:.40}")


def _texts(name: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    listed = (given,) if isinstance(given, str) else given or ()
    texts = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name}: must be a text or a list of texts, not {given!r:.40}")
    return texts


def _structured_output(asked: StructuredOutput | Mapping[str, Any] | None) -> StructuredOutput | None:
    if asked is None or isinstance(asked, StructuredOutput):
        return asked
    match list(asked.items()) if isinstance(asked, Mapping) else asked:
        case [("json", schema)]:
            return StructuredOutput(json_schema=schema if isinstance(schema, str) else _json(schema))
        case [("choice", choices)]:
            return StructuredOutput(choice=_texts("structured_output: choice", choices))
        case [("regex", str(pattern))]:
            return StructuredOutput(regex=pattern)
        case [("grammar", str(text))]:
            return StructuredOutput(grammar=text)
        case [("json_object", True)]:
            return StructuredOutput(json_object=True)
    raise InvalidRequest("structured_output: must have exactly one of json, json_object, regex, choice and grammar")


def _json(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"structured_output: json is no JSON schema ({error})") from error


def _ids(name: str, ids: Sequence[int]) -> I32:
    try:
        return i32(ids)
    except (TypeError, OverflowError) as error:
        raise InvalidRequest(f"{name}: not a list of token ids ({error})") from error


def _messages(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, Iterable):
        raise InvalidRequest(f"messages: must be a list of messages, not {messages!r:.40}")
    return tuple(map(_message, messages))


def _message(message: Message) -> ChatMessage:
    match message:
        case ChatMessage():
            return message
        case (str(role), str(content)):
            return ChatMessage(role, content)
        case {"role": str(role), "content": str(content)} if len(message) == 2:
            return ChatMessage(role, content)
    raise InvalidRequest(f"messages: {message!r} is no (role, content)")
