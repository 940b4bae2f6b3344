"""Every request field of OpenAI's two endpoints and of vLLM's extensions, and how it is supported.

The one declaration from which the checks of requests, the OpenAPI document and the tables of docs/openai.md are made.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dunlin.limits import I32_MOST, MOST_CHOICES, MOST_LOGPROBS, InvalidField, WholeNumber, brief_repr
from services.dispatcher.doors.openai.schemas import (
    BOOLEAN,
    CHOICE,
    GRAMMAR_TEXT,
    JSON_SCHEMA,
    MESSAGE,
    OBJECT,
    PROMPT,
    RESPONSE_FORMAT,
    SERVICE_TIERS,
    SETTING_SCHEMAS,
    STREAM_OPTIONS,
    STRING,
    STRUCTURED_OUTPUTS,
    TOOL_CHOICE,
    TOOLS_SCHEMA,
    Json,
    range_of,
)


class FieldSupport(Enum):
    """How a field is supported. None is accepted and then ignored, unless it cannot have an effect here (NO_EFFECT).

    The values are the texts of docs/openai.md.
    """

    HONOURED = "honoured"
    ONLY = "only the value that changes nothing"
    NO_EFFECT = "taken, has no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RequestField:
    """One field. `schema` is the JSON schema of accepted values; `description` goes into the docs and into errors."""

    support: FieldSupport
    description: str
    schema: Json = field(default_factory=dict)

    def check(self, name: str, value: Any) -> None:
        """Check a value that is not honoured; honoured fields are checked where they are read.

        Raises:
            InvalidField: the field is not supported, or not with this value.
        """
        match self.support:
            case FieldSupport.REFUSED:
                raise InvalidField(name, f"is not supported here: {self.description}")
            case FieldSupport.ONLY if not any(_equal(value, one) for one in self.schema["enum"]):
                values = " or ".join(map(json.dumps, self.schema["enum"]))
                raise InvalidField(name, f"is supported only as {values}, not {brief_repr(value)}: {self.description}")
            case FieldSupport.NO_EFFECT if not isinstance(value, JSON_TYPES[self.schema["type"]]):
                raise InvalidField(name, f"must be of type {self.schema['type']}, not {brief_repr(value)}")


JSON_TYPES: dict[str, type] = {"string": str, "boolean": bool, "object": Mapping}


def _equal(value: Any, allowed: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, and true equals neither."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def _setting(name: str, description: str) -> RequestField:
    return RequestField(FieldSupport.HONOURED, description, SETTING_SCHEMAS[name])


def _honoured(description: str, schema: Json) -> RequestField:
    return RequestField(FieldSupport.HONOURED, description, schema)


def _only(description: str, *values: Any) -> RequestField:
    return RequestField(FieldSupport.ONLY, description, {"enum": list(values)})


def _no_effect(description: str, schema: Json) -> RequestField:
    return RequestField(FieldSupport.NO_EFFECT, description, schema)


def _refused(description: str) -> RequestField:
    return RequestField(FieldSupport.REFUSED, description)


_OLD_TOOLS = "use tools and tool_choice, which replaced it"
_AUDIO = "models here take and give text alone"
_ONE_FORMAT = "the output matches it; see Structured output below"
_ENDS = "so many tokens come before an end token or one of `stop_token_ids`, or a stop string's first; default 0"
_PROMPT_LOGPROBS = (
    "as vLLM's: `prompt_logprobs` of the whole answer has each prompt token's log-probability and rank, and so many "
    "likeliest tokens there; not with `stream: true`. See Log-probabilities of prompts below"
)
_OWN_TEMPLATE = "the model's own chat template is used, as it is"
_NO_TRANSFER = "the cluster moves KV by itself"

_BOTH: dict[str, RequestField] = {
    "model": _honoured("must name the model that is served, or one of its adapters, if it is given", STRING),
    "frequency_penalty": _setting("frequency_penalty", "counts generated tokens"),
    "logit_bias": _setting("logit_bias", "added to the logits; every id must be in the model's vocabulary"),
    "n": _honoured(
        f"choices of each prompt; at most {MOST_CHOICES} of all together", range_of(WholeNumber(1, MOST_CHOICES))
    ),
    "presence_penalty": _setting("presence_penalty", "counts generated tokens once"),
    "seed": _setting("seed", "without it one is drawn; all choices share it and differ by their number"),
    "stop": _setting("stop", "the text ends before the first of them"),
    "stream": _honoured("server-sent events, the last is `[DONE]`", BOOLEAN),
    "stream_options": _honoured(
        "with `stream: true` only. `include_usage`: a last chunk with the usage of all choices. "
        "`continuous_usage_stats` (vLLM): every chunk tells the tokens of its own choice so far; it implies "
        "`include_usage` and is refused beside `include_usage: false`. `include_obfuscation`: only false",
        STREAM_OPTIONS,
    ),
    "temperature": _setting("temperature", "0 and below 0.00001: always the most likely token. Default 1"),
    "top_p": _setting("top_p", "default 1"),
    "user": _no_effect("tenants are known by their keys", STRING),
    "ignore_eos": _setting("ignore_eos", "the model's own end tokens do not end the text"),
    "min_p": _setting("min_p", "default 0"),
    "repetition_penalty": _setting("repetition_penalty", "counts the prompt too. Default 1"),
    "stop_token_ids": _setting("stop_token_ids", "ends the text; every id must be in the model's vocabulary"),
    "top_k": _setting("top_k", "0 and -1: no limit"),
    "request_class": _setting("request_class", "dunlin's own: interactive requests go before batch ones"),
    "timeout_s": _setting("timeout_s", "dunlin's own: seconds from arrival, then 504"),
    "ttft_objective_s": _setting(
        "ttft_objective_s", "dunlin's own: seconds within which the first token should come; has a least value"
    ),
    "tpot_objective_s": _setting(
        "tpot_objective_s", "dunlin's own: seconds within which each further token should come; has a least value"
    ),
    "allowed_token_ids": _setting("allowed_token_ids", "no other token is chosen; not beside a format"),
    "bad_words": _setting("bad_words", "do not occur in the text, nor after a space; not beside a format"),
    "cache_salt": _refused("the KV of different tenants is never shared, and has no other partition"),
    "ec_transfer_params": _refused(_NO_TRANSFER),
    "guided_choice": _honoured(f"texts: {_ONE_FORMAT}", CHOICE),
    "guided_decoding_backend": _refused("there is one, llguidance"),
    "guided_grammar": _honoured(f"in Lark's notation, or GBNF: {_ONE_FORMAT}", GRAMMAR_TEXT),
    "guided_json": _honoured(f"a JSON schema, or its text: {_ONE_FORMAT}", JSON_SCHEMA),
    "guided_regex": _honoured(f"a regular expression: {_ONE_FORMAT}", GRAMMAR_TEXT),
    "guided_whitespace_pattern": _honoured("a regular expression, with guided_json only", STRING),
    "include_stop_str_in_output": _only("the text ends before a stop string", False),
    "kv_transfer_params": _refused(_NO_TRANSFER),
    "length_penalty": _only("there is no beam search", 1.0),
    "logits_processors": _refused("no code comes with a request"),
    "logprob_token_ids": _refused("log-probabilities are those of the likeliest tokens"),
    "min_tokens": _setting("min_tokens", _ENDS),
    "priority": _only("use request_class: interactive goes before batch", 0),
    "prompt_logprobs": _setting("prompt_logprobs", _PROMPT_LOGPROBS),
    "repetition_detection": _refused("use repetition_penalty"),
    "request_id": _refused("the server names requests; a client's own name is the header Idempotency-Key"),
    "response_format": _honoured(
        "`text`, `json_object`, or `json_schema` with its schema: "
        f"{_ONE_FORMAT}. `strict` changes nothing: a schema is always kept to",
        RESPONSE_FORMAT,
    ),
    "return_token_ids": _only("answers hold text; the gRPC door tells the token ids", False),
    "return_tokens_as_token_ids": _only("tokens are spelled as text", False),
    "skip_special_tokens": _only("special tokens are no part of the text", True),
    "spaces_between_special_tokens": _only("special tokens are no part of the text", True),
    "stream_interval": _only("a chunk is sent as soon as its tokens are there", 1),
    "structured_outputs": _honoured(
        "vLLM's: exactly one of `json`, `json_object`, `regex`, `choice`, `grammar`, and for JSON `whitespace_pattern` "
        f"or `disable_any_whitespace`. {_ONE_FORMAT.capitalize()}",
        STRUCTURED_OUTPUTS,
    ),
    "thinking_token_budget": _refused("thinking is not told apart from other text"),
    "truncate_prompt_tokens": _refused("a prompt is taken whole or refused"),
    "truncation_side": _refused("a prompt is taken whole or refused"),
    "use_beam_search": _only("there is no beam search", False),
    "vllm_xargs": _refused("no such extensions exist here"),
}

COMPLETION_FIELDS: dict[str, RequestField] = {
    "prompt": _honoured("required. A text, token ids, or a list of either; none may be empty", PROMPT),
    **_BOTH,
    "best_of": _honoured(
        "must be equal to `n`: every text that is generated is sent", range_of(WholeNumber(1, MOST_CHOICES))
    ),
    "echo": _honoured("the prompt stands before the text, and with `logprobs` its tokens before the text's", BOOLEAN),
    "logprobs": _honoured(
        "so many likeliest tokens beside the chosen one; 0: the chosen one alone", SETTING_SCHEMAS["logprobs"]
    ),
    "max_tokens": _honoured(
        "default 16; prompt and text together must fit into the model. 0: the prompt alone, with `echo: true` only",
        {**SETTING_SCHEMAS["max_tokens"], "minimum": 0},
    ),
    "suffix": _only("texts are continued at their end alone", ""),
    "add_special_tokens": _only("the tokenizer's own special tokens are added to a text", True),
    "prompt_embeds": _refused("prompts are texts or token ids"),
}

CHAT_FIELDS: dict[str, RequestField] = {
    "messages": _honoured(
        "required. `content` is a string or a list of text parts. The role `developer` is passed to the chat template "
        "as `system`. `name` is passed to it too, and refused where the template does not read it",
        {"type": "array", "items": MESSAGE, "minItems": 1},
    ),
    **_BOTH,
    "logprobs": _honoured("log-probabilities of the generated tokens", BOOLEAN),
    "top_logprobs": _honoured(
        "so many likeliest tokens beside the chosen one, with `logprobs: true` only",
        range_of(WholeNumber(0, MOST_LOGPROBS)),
    ),
    "max_completion_tokens": _honoured("default: what the model's context leaves", range_of(WholeNumber(1, I32_MOST))),
    "max_tokens": _setting(
        "max_tokens", "the older name of `max_completion_tokens`; where both are given they must be equal"
    ),
    "audio": _refused(_AUDIO),
    "function_call": _only(_OLD_TOOLS, "none", "auto"),
    "functions": _only(_OLD_TOOLS, []),
    "metadata": _no_effect("completions are not stored, so nothing is kept with them", OBJECT),
    "modalities": _only(_AUDIO, ["text"]),
    "moderation": _refused("nothing is moderated here"),
    "parallel_tool_calls": _honoured("false: calls after the first are left out, or not made. Default true", BOOLEAN),
    "prediction": _refused("no text is predicted here"),
    "prompt_cache_key": _no_effect("prompts that begin alike find each other by their tokens", STRING),
    "prompt_cache_options": _refused("what is cached, and for how long, is decided by load"),
    "prompt_cache_retention": _only("KV is kept in memory, for as long as there is room", "in_memory"),
    "reasoning_effort": _only("models here do not reason apart from their text", "none"),
    "safety_identifier": _no_effect("tenants are known by their keys", STRING),
    "service_tier": _honoured(
        "`flex` is request_class batch, and refused beside request_class interactive; the others say nothing",
        {"enum": [*SERVICE_TIERS]},
    ),
    "store": _only("completions are not stored", False),
    "tool_choice": _honoured(
        "`auto`, the default: the model calls tools or not; `none`: it is told of none; `required`, or a function by "
        "its name: the output is constrained to calls",
        TOOL_CHOICE,
    ),
    "tools": _honoured(
        "functions that the model may call, if its chat template reads them; see Tool calls below. Not beside a format",
        TOOLS_SCHEMA,
    ),
    "verbosity": _only("a model's style is asked for in its messages", "medium"),
    "web_search_options": _refused("nothing is searched"),
    "add_generation_prompt": _only(_OWN_TEMPLATE, True),
    "add_special_tokens": _only("the chat template writes the special tokens", False),
    "chat_template": _refused(_OWN_TEMPLATE),
    "chat_template_kwargs": _only(_OWN_TEMPLATE, {}),
    "continue_final_message": _only("an answer is a new message; /v1/completions continues a text", False),
    "documents": _refused("put them into a message"),
    "echo": _only("an answer is a new message", False),
    "include_reasoning": _only("models here do not reason apart from their text", True),
    "media_io_kwargs": _refused(_AUDIO),
    "mm_processor_kwargs": _refused(_AUDIO),
    "return_prompt_text": _only("answers do not repeat prompts", False),
}
