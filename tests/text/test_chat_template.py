"""Chat templates and the names of speakers: read by the template, or refused."""

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from dunlin.text.chat_template import ChatTemplate, ChatTemplateError

ANN = {"role": "user", "content": "Hi", "name": "Ann"}
NAMELESS = {"role": "assistant", "content": "Hello"}


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, {}, Path("chat_template.jinja"))


@pytest.mark.parametrize(
    "read",
    [
        "{{ m.name }}",
        "{{ m['name'] }}",
        "{{ m.get('name') }}",
        "{% if m.name %}{{ m.name }}{% endif %}",
        "{% for key, value in m.items() %}{{ value }}{% endfor %}",
        "{% for value in m.values() %}{{ value }}{% endfor %}",
        "{{ m | tojson }}",
    ],
)
def test_a_template_that_reads_a_name_has_it(read: str) -> None:
    made = template("{% for m in messages %}" + read + "{% endfor %}")
    assert "Ann" in made.render([ANN])
    assert made.render([{**ANN, "name": "Bob"}]) != made.render([ANN])


@pytest.mark.parametrize(
    "source",
    [
        None,
        "{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'tool' %}{{ m.name }}{% endif %}{{ m.content }}{% endfor %}",
        "{% set tool = {'name': 'x'} %}{% for m in messages %}{{ tool.name }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if 'name' in m %}{% endif %}{{ m.content }}{% endfor %}",
    ],
)
def test_a_name_that_nothing_reads_is_refused_by_its_place(source: str | None) -> None:
    with pytest.raises(
        ChatTemplateError, match=r"^messages\.1\.name: the model's chat template does not read"
    ) as caught:
        template(source).render([NAMELESS, ANN])
    assert caught.value.field == "messages.1.name"
    assert "Hello" in template(source).render([NAMELESS])


def test_each_name_must_be_read() -> None:
    made = template("{{ messages[0].name }}{{ messages[1].content }}")
    assert made.render([ANN, NAMELESS]) == "AnnHello"
    with pytest.raises(ChatTemplateError, match=r"messages\.1\.name"):
        made.render([ANN, ANN])


@pytest.mark.parametrize("source", ["{{ messages[0].pop('name') }}", "{{ messages[0].update({'name': 1}) }}"])
def test_a_template_cannot_change_a_message(source: str) -> None:
    message: dict[str, Any] = dict(ANN)
    with pytest.raises(ChatTemplateError):
        template(source).render([message])
    assert message == ANN


def test_an_error_of_the_template_is_about_all_messages() -> None:
    with pytest.raises(ChatTemplateError, match="cannot take these messages: no") as caught:
        template("{{ raise_exception('no') }}").render([ANN])
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) | length }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ [1][7].x }}",
    ],
)
def test_whatever_a_template_runs_into_is_an_error_about_the_messages(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot take these messages"):
        template(source).render([NAMELESS])


def test_an_error_holds_no_lone_surrogate() -> None:
    with pytest.raises(ChatTemplateError, match=r"no role \\ud800") as caught:
        template("{{ raise_exception('no role ' + messages[0].role) }}").render([{"role": "\ud800", "content": "Hi"}])
    assert str(caught.value).encode()


@pytest.mark.parametrize("test", ["is none", "is not defined or tools is none"])
def test_templates_find_that_no_tools_are_given(test: str) -> None:
    assert template("{% if tools " + test + " %}none{% endif %}").render([NAMELESS]) == "none"


def test_what_is_marked_as_generated_is_rendered_as_it_is() -> None:
    source = (
        "{% for m in messages %}{% generation %}{% set said = m.content %}{{ said }}.{% endgeneration %}{% endfor %}"
    )
    assert template(source).render([NAMELESS, NAMELESS]) == "Hello.Hello."


@pytest.mark.parametrize(
    "options", ["", "()", "(indent=2)", "(ensure_ascii=true)", "(separators=(',', ':'))", "(sort_keys=true)"]
)
def test_tools_are_spelled_as_transformers_spells_them(options: str) -> None:
    """Models learnt them so: keys in the order given, and no character escaped but where JSON has it."""
    source = "{% for tool in tools %}{{ tool | tojson" + options + " }}{% endfor %}{{ messages[0].content }}"
    function = {"name": "look_up", "description": "<b> & 'é' 🦜", "parameters": {"type": "object", "properties": {}}}
    tools: list[Any] = [{"type": "function", "function": function}]
    theirs: Any = render_jinja_template([[NAMELESS]], tools=tools, chat_template=source)
    assert template(source).render([NAMELESS], tools=tools) == theirs[0][0]
