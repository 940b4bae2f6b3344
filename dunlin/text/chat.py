"""Chat templates: messages to one prompt. Templates come from checkpoints, so they run in a sandbox."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dunlin.engine.errors import ModelError

# For checkpoints without a template: plain text that any model may continue.
PLAIN = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


class ChatError(ValueError):
    """Messages that the template refuses; the text is fit for the client."""


class ChatTemplate:
    """One compiled template. `source` None stands for the plain one."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str], path: Path) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(PLAIN if source is None else source)
        except TemplateError as error:
            raise ModelError(path, f"has a chat template that does not compile ({error})", "correct it") from None

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt for `messages`, each with `role` and `content`.

        :raises ChatError: the template refuses the messages or fails on them.
        """
        variables = {
            **self._special_tokens,
            **extra,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise ChatError(f"the model's chat template cannot take these messages: {error}") from None


def _refuse(reason: str) -> None:
    raise TemplateError(reason)
