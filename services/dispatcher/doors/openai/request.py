"""Parses OpenAI's JSON requests: every field is honoured, refused by name, or known to have no effect. Knows no HTTP.

`fields.py` declares how each field is supported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dunlin.limits import (
    MAX_TOKENS,
    MOST_CHOICES,
    MOST_LOGPROBS,
    MOST_NAME_CHARACTERS,
    InvalidField,
    WholeNumber,
    brief_repr,
)
from dunlin.messages.public import ChatMessage
from services.dispatcher.doors.generation.prompts import Conversation, Prompt
from services.dispatcher.doors.generation.served_model import NamedMessage, ToolMessage
from services.dispatcher.doors.generation.settings import (
    SETTING_CHECKS,
    RequestSettings,
    check_beside_grammar,
    flag,
    parse_settings,
    token_ids,
)
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.output_format import asked_grammar
from services.dispatcher.doors.openai.schemas import SERVICE_TIERS, STREAM_OPTIONS
from services.dispatcher.doors.tools.request import ToolUse, read_call_id, read_calls, read_tool_use

DEFAULT_COMPLETION_TOKENS = 16
CHOICES_RANGE = WholeNumber(1, MOST_CHOICES)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One parsed request: `choices` of each prompt, streamed or in one response. `model` None: the served one.

    `wants_usage`: a last chunk has the usage of all choices; `wants_running_usage`: each chunk has that of its choice
    so far. `grammar_field` is the field that asked for the grammar of the settings.
    `tools`: its calls are to be told apart from the text; None: there can be none. `echo`: the prompt stands before
    the text; `no_text`: in place of it. `prompt_best`: vLLM's `prompt_logprobs`.
    """

    prompts: tuple[Prompt, ...]
    settings: RequestSettings = field(default_factory=RequestSettings)
    model: str | None = None
    choices: int = 1
    streams: bool = False
    wants_usage: bool = False
    wants_running_usage: bool = False
    grammar_field: str = ""
    tools: ToolUse | None = None
    echo: bool = False
    no_text: bool = False
    prompt_best: int | None = None


def parse_completion(body: Mapping[str, Any]) -> ParsedRequest:
    """The request of a body of /v1/completions.

    Raises:
        InvalidField: a field is unknown, not supported, or has a value that is not allowed.
    """
    given = _given(body, COMPLETION_FIELDS)
    values = _settings(given)
    values.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
    echo = flag("echo", given.get("echo", False))
    no_text = echo and values["max_tokens"] == 0 and not isinstance(values["max_tokens"], bool)
    if no_text:
        values["max_tokens"] = 1  # an engine has nothing to compute otherwise
    if echo and "logprobs" in values:
        values["prompt_logprobs"] = _most(values, "prompt_logprobs", "logprobs")
    if "best_of" in given and CHOICES_RANGE("best_of", given["best_of"]) != given.get("n", 1):
        raise InvalidField("best_of", "must be equal to n: every text that is generated is sent")
    request = _request(_prompts(given.get("prompt")), values, given)
    return replace(request, echo=echo, no_text=no_text)


def parse_chat(body: Mapping[str, Any]) -> ParsedRequest:
    """The request of a body of /v1/chat/completions.

    Raises:
        InvalidField: a field is unknown, not supported, or has a value that is not allowed.
    """
    given = _given(body, CHAT_FIELDS)
    values = {**_settings(given), "logprobs": _chat_logprobs(given), "request_class": _chat_class(given)}
    if "max_completion_tokens" in given:
        values["max_tokens"] = _max_tokens(given)
    messages, tools = _messages(given.get("messages")), read_tool_use(given)
    request = _request((messages if tools is None else Conversation(messages, tools.functions),), values, given)
    if tools is not None and request.grammar_field:
        raise InvalidField(request.grammar_field.split(".")[0], "cannot be given beside tools")
    if tools is not None and tools.is_required:
        check_beside_grammar(values)
    return replace(request, tools=tools)


def _most(values: Mapping[str, Any], *names: str) -> int:
    """The greatest of the named counts of likeliest tokens that are given."""
    given: list[int] = [SETTING_CHECKS[name](name, values[name]) for name in names if name in values]
    return max(given)


def _given(body: Any, fields: Mapping[str, RequestField]) -> dict[str, Any]:
    """The honoured fields with a value. A field that is null counts as absent, as everywhere in this protocol."""
    if not isinstance(body, Mapping):
        raise InvalidField("body", "must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in fields:
            raise InvalidField(name, "is not a field that is known here")
        fields[name].check(name, value)
    return {name: value for name, value in given.items() if fields[name].support is FieldSupport.HONOURED}


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in SETTING_CHECKS}


def _max_tokens(given: Mapping[str, Any]) -> int:
    """The limit of generated tokens under its new or old name; two values that differ are refused."""
    most = MAX_TOKENS("max_completion_tokens", given["max_completion_tokens"])
    if MAX_TOKENS("max_tokens", given.get("max_tokens", most)) != most:
        text = f"is {most}, and max_tokens, its older name, {given['max_tokens']}: give one, or both alike"
        raise InvalidField("max_completion_tokens", text)
    return most


def _request(prompts: tuple[Prompt, ...], values: dict[str, Any], given: Mapping[str, Any]) -> ParsedRequest:
    choices = CHOICES_RANGE("n", given.get("n", 1))
    if choices * len(prompts) > MOST_CHOICES:
        raise InvalidField("n", f"{choices} choices of {len(prompts)} prompts are more than {MOST_CHOICES}")
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidField("model", "must be a string")
    streams = flag("stream", given.get("stream", False))
    usage, running = _stream_options(given.get("stream_options"), streams)
    if streams and "prompt_logprobs" in given:
        raise InvalidField("prompt_logprobs", "comes in whole answers alone, not with stream: true")
    asked = asked_grammar(given)
    settings = parse_settings(values, None if asked is None else asked.grammar)
    field = "" if asked is None else asked.name
    best = given.get("prompt_logprobs")
    return ParsedRequest(prompts, settings, model, choices, streams, usage, running, field, prompt_best=best)


def _stream_options(options: Any, streams: bool) -> tuple[bool, bool]:
    """(the usage comes in a last chunk, the usage comes in every chunk)."""
    if options is None:
        return False, False
    if not isinstance(options, Mapping):
        raise InvalidField("stream_options", "must be an object")
    if not streams:
        raise InvalidField("stream_options", "is allowed with stream: true only")
    for name in options:
        if name not in STREAM_OPTIONS["properties"]:
            raise InvalidField(f"stream_options.{name}", "is not a field that is known here")
    flags = {name: flag(f"stream_options.{name}", value) for name, value in options.items() if value is not None}
    if flags.get("include_obfuscation"):
        raise InvalidField("stream_options.include_obfuscation", "is supported only as false: chunks are not padded")
    running = flags.get("continuous_usage_stats", False)
    if running and not flags.get("include_usage", True):
        raise InvalidField("stream_options.continuous_usage_stats", "needs include_usage: true")
    return running or flags.get("include_usage", False), running


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """The prompts of `prompt`: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, Sequence) or not prompt:
        raise InvalidField(
            "prompt", "must be a string, a list of strings, a list of token ids, or a list of such lists"
        )
    if isinstance(prompt[0], int):
        return (token_ids("prompt", prompt),)
    if len(prompt) > MOST_CHOICES:
        raise InvalidField("prompt", f"has {len(prompt)} prompts; at most {MOST_CHOICES} are allowed")
    return tuple(_one_prompt(f"prompt.{index}", one) for index, one in enumerate(prompt))


def _one_prompt(name: str, prompt: Any) -> Prompt:
    return prompt if isinstance(prompt, str) else token_ids(name, prompt)


def _messages(messages: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidField("messages", "must be a list of at least one message")
    return tuple(_message(f"messages.{index}", one) for index, one in enumerate(messages))


def _message(name: str, message: Any) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise InvalidField(name, "must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidField(f"{name}.role", "must be a string such as user")
    role = "system" if role == "developer" else role
    of_tools = _tool_fields(name, role, message)
    for key, value in message.items():
        if key not in ("role", "content", "name", *of_tools) and not _is_empty(value):
            raise InvalidField(f"{name}.{key}", "is not supported here")
    if of_tools:
        return ToolMessage(role, _content(f"{name}.content", message.get("content") or ""), of_tools)
    content = _content(f"{name}.content", message.get("content"))
    if message.get("name") is None:
        return ChatMessage(role, content)
    return NamedMessage(role, content, _speaker_name(f"{name}.name", message["name"]))


def _tool_fields(name: str, role: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that are about tool calls; empty: it is about none."""
    if role == "assistant" and not _is_empty(message.get("tool_calls")):
        return {"tool_calls": read_calls(f"{name}.tool_calls", message["tool_calls"])}
    if role != "tool":
        return {}
    fields = {"tool_call_id": read_call_id(f"{name}.tool_call_id", message.get("tool_call_id"))}
    if message.get("name") is not None:
        fields["name"] = _speaker_name(f"{name}.name", message["name"])
    return fields


def _is_empty(value: Any) -> bool:
    """Whether a message's extra field has no content: clients send an answer back with its empty `tool_calls: []`."""
    if isinstance(value, Mapping):
        return bool(value) and all(one is None for one in value.values())
    return value is None or value == []


def _speaker_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MOST_NAME_CHARACTERS:
        raise InvalidField(name, f"must be a string of 1 to {MOST_NAME_CHARACTERS} characters, not {brief_repr(value)}")
    return value


def _content(name: str, content: Any) -> str:
    """The text of a message's content: a string or a list of text parts; images and audio are refused."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidField(name, "must be a string or a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidField(name, 'each part must be {"type": "text", "text": "…"}')
        for key, value in part.items():
            if key not in ("type", "text") and not _is_empty(value):
                raise InvalidField(f"{name}.{key}", "is not supported here")
    return "".join(part["text"] for part in content)


def _chat_class(given: Mapping[str, Any]) -> Any:
    """The class that `request_class` or its OpenAI name says; None: neither does."""
    tier, said = given.get("service_tier", "auto"), given.get("request_class")
    if tier not in SERVICE_TIERS:
        raise InvalidField("service_tier", f"must be one of {', '.join(SERVICE_TIERS)}, not {brief_repr(tier)}")
    if tier != "flex":
        return said
    if said not in (None, "batch"):
        raise InvalidField("service_tier", "is flex, which is request_class batch: give one, or both alike")
    return "batch"


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted = flag("logprobs", given.get("logprobs", False))
    best = WholeNumber(0, MOST_LOGPROBS)("top_logprobs", given.get("top_logprobs", 0))
    if "top_logprobs" in given and not wanted:
        raise InvalidField("top_logprobs", "is allowed with logprobs: true only")
    return best if wanted else None
