"""OpenAI's requests out of JSON: every field is taken, refused by name, or known to change nothing. Knows no HTTP."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dunlin.limits import MOST_CHOICES, MOST_LOGPROBS, BadField, Whole
from dunlin.messages.public import ChatMessage
from services.dispatcher.prompts import Prompt
from services.dispatcher.settings import Settings, flag, settings_of, token_ids

DEFAULT_COMPLETION_TOKENS = 16
SHARED = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "timeout_s", "request_class",
)  # fmt: skip
OURS = ("model", "n", "stream", "stream_options")


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request: `choices` of each prompt, streamed or whole. `model` None: whatever is served."""

    prompts: tuple[Prompt, ...]
    settings: Settings = field(default_factory=Settings)
    model: str | None = None
    choices: int = 1
    streams: bool = False
    wants_usage: bool = False


def completion_of(body: Mapping[str, Any]) -> Asked:
    """A text completion.

    Raises:
        BadField: what cannot be taken, by name.
    """
    given = _given(body, (*SHARED, *OURS, "prompt", "logprobs"), COMPLETION_NEUTRAL)
    values = {name: given[name] for name in (*SHARED, "logprobs") if name in given}
    values.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
    return _asked(_prompts(given.get("prompt")), values, given)


def chat_of(body: Mapping[str, Any]) -> Asked:
    """A chat completion.

    Raises:
        BadField: what cannot be taken, by name.
    """
    own = ("messages", "logprobs", "top_logprobs", "max_completion_tokens")
    given = _given(body, (*SHARED, *OURS, *own), CHAT_NEUTRAL)
    values = {name: given[name] for name in SHARED if name in given}
    if "max_completion_tokens" in given:
        values["max_tokens"] = Whole(1, (1 << 31) - 1)("max_completion_tokens", given["max_completion_tokens"])
    values["logprobs"] = _chat_logprobs(given)
    return _asked((_messages(given.get("messages")),), values, given)


def _given(body: Any, known: tuple[str, ...], neutral: "Mapping[str, Neutral]") -> dict[str, Any]:
    """The fields that say something. null says nothing, as everywhere in this protocol."""
    if not isinstance(body, Mapping):
        raise BadField("body", "must be a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in neutral:
            neutral[name](name, value)
        elif name not in known:
            raise BadField(name, "is not a field that is known here")
    return given


def _asked(prompts: tuple[Prompt, ...], values: dict[str, Any], given: Mapping[str, Any]) -> Asked:
    choices = Whole(1, MOST_CHOICES)("n", given.get("n", 1))
    if choices * len(prompts) > MOST_CHOICES:
        raise BadField("n", f"{choices} choices of {len(prompts)} prompts are more than {MOST_CHOICES}")
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise BadField("model", "must be a string")
    streams = flag("stream", given.get("stream", False))
    usage = _wants_usage(given.get("stream_options"), streams)
    return Asked(prompts, settings_of(values), model, choices, streams, usage)


def _wants_usage(options: Any, streams: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, Mapping):
        raise BadField("stream_options", "must be an object")
    if not streams:
        raise BadField("stream_options", "is allowed with stream: true only")
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise BadField(f"stream_options.{name}", "is not a field that is known here")
    return flag("stream_options.include_usage", options.get("include_usage", False))


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, Sequence) or not prompt:
        raise BadField("prompt", "must be a string, a list of strings, a list of token ids, or a list of such lists")
    if isinstance(prompt[0], int):
        return (token_ids("prompt", prompt),)
    if len(prompt) > MOST_CHOICES:
        raise BadField("prompt", f"has {len(prompt)} prompts; at most {MOST_CHOICES} are allowed")
    return tuple(_one_prompt(f"prompt.{index}", one) for index, one in enumerate(prompt))


def _one_prompt(name: str, prompt: Any) -> Prompt:
    return prompt if isinstance(prompt, str) else token_ids(name, prompt)


def _messages(messages: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadField("messages", "must be a list of at least one message")
    return tuple(_message(f"messages.{index}", one) for index, one in enumerate(messages))


def _message(name: str, message: Any) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise BadField(name, "must be an object with role and content")
    for key, value in message.items():
        if key not in ("role", "content", "name") and value is not None:
            raise BadField(f"{name}.{key}", "is not supported here")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadField(f"{name}.role", "must be a string such as user")
    return ChatMessage("system" if role == "developer" else role, _content(f"{name}.content", message.get("content")))


def _content(name: str, content: Any) -> str:
    """A string, or parts of text; pictures and sound are not for this model."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadField(name, "must be a string or a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadField(name, 'each part must be {"type": "text", "text": "…"}')
    return "".join(part["text"] for part in content)


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted = flag("logprobs", given.get("logprobs", False))
    best = Whole(0, MOST_LOGPROBS)("top_logprobs", given.get("top_logprobs", 0))
    if "top_logprobs" in given and not wanted:
        raise BadField("top_logprobs", "is allowed with logprobs: true only")
    return best if wanted else None


# --- fields that are taken only where they change nothing ---

Neutral = Callable[[str, Any], None]


def _only(*allowed: Any) -> Neutral:
    def check(name: str, value: Any) -> None:
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise BadField(name, f"is supported only as {' or '.join(map(repr, allowed))}")

    return check


def _any(name: str, value: Any) -> None:
    """Says who asks or how to keep books, which is not done here."""


COMPLETION_NEUTRAL: dict[str, Neutral] = {
    "user": _any,
    "echo": _only(False),
    "best_of": _only(1),
    "suffix": _only(""),
}
CHAT_NEUTRAL: dict[str, Neutral] = {
    "user": _any,
    "metadata": _any,
    "safety_identifier": _any,
    "prompt_cache_key": _any,
    "parallel_tool_calls": _any,
    "store": _only(False),
    "service_tier": _only("auto", "default"),
    "response_format": _only({"type": "text"}),
    "modalities": _only(["text"]),
    "tools": _only([]),
    "tool_choice": _only("none", "auto"),
}
