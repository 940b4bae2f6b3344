"""Chat templates: from messages to one prompt. Templates come from checkpoints, so they run in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dunlin.limits import escape_surrogates
from dunlin.model.errors import ModelError

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""For checkpoints without a template: plain text that any model can continue."""

ABSENT_VARIABLES = {"tools": None, "documents": None}
"""Variables that templates expect and dunlin does not have. Templates test them for None, some without `is defined`."""

MAX_ERROR_CHARACTERS = 500
"""Characters kept of a template's own error text, which may repeat the client's messages."""


class ChatTemplateError(ValueError):
    """Messages that the template refuses; the text is meant for the client. `field` names the message at fault."""

    def __init__(self, text: str, field: str = "messages") -> None:
        super().__init__(text)
        self.field = field


class _NamedMessage(dict[str, Any]):
    """A message with a name, as a template sees it; records whether the template read the name."""

    _is_read = False

    @property
    def is_unread(self) -> bool:
        """Whether the template did not read the name, so that it has no effect on the prompt."""
        return not self._is_read

    def __getitem__(self, key: str) -> Any:
        self._is_read |= key == "name"
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._is_read |= key == "name"
        return super().get(key, default)

    def items(self) -> Any:
        self._is_read = True  # as `tojson` and loops do
        return super().items()

    def values(self) -> Any:
        self._is_read = True
        return super().values()


class GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training. Here it stands for its body."""

    tags = {"generation"}  # noqa: RUF012 jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class ChatTemplate:
    """A compiled template; `source` None: `DEFAULT_TEMPLATE`. `path` is the template's file, for errors.

    `writes_special_tokens`: those that a prompt begins with are in its text, if there are any; not so in the default's.

    `tools_source` is the template for prompts with tools, where a checkpoint has one of its own for them.
    `reads_tools`: it writes into the prompt what tools there are.

    Raises:
        ModelError: a template does not compile.
    """

    def __init__(
        self, source: str | None, special_tokens: Mapping[str, str], path: Path, tools_source: str | None = None
    ) -> None:
        extensions = [loopcontrols, GenerationTag]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = dict(special_tokens)
        self.writes_special_tokens = source is not None
        source = DEFAULT_TEMPLATE if source is None else source
        self.tools_source = source if tools_source is None else tools_source
        try:
            self._template = self._tools_template = environment.from_string(source)
            if tools_source is not None:
                self._tools_template = environment.from_string(tools_source)
            self.reads_tools = "tools" in find_undeclared_variables(environment.parse(self.tools_source))
        except Exception as error:  # jinja2's own, and Python's where what it makes of a template cannot be compiled
            raise ModelError(path, f"has a chat template that does not compile ({error})", "correct it") from None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt for `messages`, each with `role` and `content`, and with `name` if it has one.

        Raises:
            ChatTemplateError: the template refuses the messages, fails on them, or does not read a name.
        """
        messages = [_NamedMessage(message) if _has_speaker(message) else message for message in messages]
        variables = {
            **ABSENT_VARIABLES,
            **self._special_tokens,
            **extra,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._tools_template if variables["tools"] else self._template
        try:
            prompt = template.render(variables)
        except Exception as error:  # a checkpoint's own code may raise anything on a client's messages
            text = escape_surrogates(str(error)[:MAX_ERROR_CHARACTERS])
            raise ChatTemplateError(f"the model's chat template cannot take these messages: {text}") from None
        _check_names(messages)
        return prompt


def _has_speaker(message: Mapping[str, Any]) -> bool:
    """Whether a message names its speaker. The name of a tool's answer only repeats that of the call."""
    return "name" in message and message.get("role") != "tool"


def _check_names(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if isinstance(message, _NamedMessage) and message.is_unread:
            field = f"messages.{index}.name"
            raise ChatTemplateError(
                f"{field}: the model's chat template does not read the names of such messages", field
            )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as transformers has it, by which models learnt tools: jinja2's own sorts keys and escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(reason: str) -> None:
    raise TemplateError(reason)
