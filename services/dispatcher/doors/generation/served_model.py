"""The model as the doors need it: name, limits, tokenizer and chat template. Holds no weights."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dunlin.limits import brief_repr
from dunlin.messages.public import ChatMessage
from dunlin.model.builtin import resolve_model, served_name
from dunlin.model.config import load_config
from dunlin.model.errors import ModelError
from dunlin.model.lora.adapter import load_adapter
from dunlin.text.chat_template import ChatTemplate
from dunlin.text.tokenizer import Tokenizer, check_tokenizer_matches_model, load_chat_template, load_tokenizer
from services.dispatcher.doors.tools.formats import ToolFormat, format_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedMessage(ChatMessage):
    """A chat message with its speaker's name. Only chat templates that read names accept it."""

    name: str


@dataclass(frozen=True, slots=True)
class ToolMessage(ChatMessage):
    """A chat message about tool calls: `fields` are its others, `tool_calls`, or `tool_call_id` and `name`."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One served model. `eos_ids` end a text; `max_positions` bounds prompt and generated tokens together.

    `vocabulary` is the number of token ids. `folder` has the tokenizer and the template: helper processes load their
    own from it. `adapters`: the digests of the LoRA adapters that requests may name as their model, by name.
    """

    name: str
    max_positions: int
    vocabulary: int
    eos_ids: tuple[int, ...]
    tokenizer: Tokenizer
    template: ChatTemplate
    folder: Path
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may name as their model: the model itself, then its adapters."""
        return self.name, *self.adapters

    def adapter_of(self, name: str | None) -> str:
        """The digest of the adapter of that name; "" for the model itself, and for None, which means it."""
        return "" if name is None else self.adapters.get(name, "")

    def why_unknown(self, name: str | None) -> str:
        """Why no request may name `name` as its model; "": it may."""
        if name is None or name in self.names:
            return ""
        served = f"{', '.join(map(repr, self.names))} {'are' if self.adapters else 'is'} served"
        return f"the model {brief_repr(name)} does not exist here; {served}"

    @property
    def tool_format(self) -> ToolFormat | None:
        """How it writes tool calls; None: it does not, or in a way that is not known."""
        return format_of(self.template.tools_source) if self.template.reads_tools else None

    def shown_marks(self) -> dict[int, str]:
        """The special tokens that mark tool calls, and the texts that stand for them where calls are looked for."""
        marks = () if self.tool_format is None else self.tool_format.marks
        found = {mark: self.tokenizer.special_token(mark) for mark in marks}
        return {token: mark for mark, token in found.items() if token is not None}

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The prompt that the chat template makes of the messages and of the functions that may be called.

        Raises:
            ChatTemplateError: the template refuses the messages.
        """
        listed = [{"type": "function", "function": one} for one in tools] or None
        return self.template.render([_as_json(one) for one in messages], tools=listed)


def _as_json(message: ChatMessage) -> dict[str, Any]:
    shown = {"role": message.role, "content": message.content}
    if isinstance(message, ToolMessage):
        return {**shown, **message.fields}
    return {**shown, "name": message.name} if isinstance(message, NamedMessage) else shown


def load_served_model(
    model: str, cache: Path, name: str = "", adapters: Mapping[str, str] | None = None
) -> ServedModel:
    """Load the model in a directory, or `builtin:NAME` (made under `cache` on first use).

    `name` is what clients call it; empty: derived from `model`. `adapters`: directories of LoRA adapters by name.

    Raises:
        ModelError: a file is missing or invalid; the text says which, and what to do.
    """
    directory = resolve_model(model, cache)
    config = load_config(directory)
    tokenizer = load_tokenizer(directory)
    check_tokenizer_matches_model(tokenizer, config.vocab, directory)
    name = served_name(model, name)
    if not config.eos_ids:
        _log.warning("the files of %s name no `eos_token_id`: texts end at their limit or a stop string alone", name)
    if name in (adapters or {}):
        raise ModelError(directory, f"an adapter has the model's own name {name!r}", "give the adapter another name")
    return ServedModel(
        name=name,
        max_positions=config.max_positions,
        vocabulary=config.vocab,
        eos_ids=config.eos_ids,
        tokenizer=tokenizer,
        template=load_chat_template(directory),
        folder=directory,
        adapters={each: load_adapter(Path(where), config).digest for each, where in (adapters or {}).items()},
    )
