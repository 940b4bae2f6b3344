"""What holds is shown as a file that gives it again; what there is to set is described."""

import tomllib

from dunlin.config.resolve import resolve
from dunlin.config.show import as_toml, as_values, describe
from dunlin.config.sources import Given
from services.settings import TABLES

GIVEN = [Given("dispatcher.http.origins", ["*"], "--set"), Given("cluster.model_name", 'a "b" ü', "file.toml")]


def test_what_is_shown_is_a_file_with_the_same_values() -> None:
    settings = resolve(TABLES, GIVEN)
    tables = tomllib.loads(as_toml(settings))
    assert tables["cluster"]["model_name"] == 'a "b" ü'
    again = [
        Given(f"{role}.{section}.{field}", value, "")
        for role, sections in tables.items()
        if role != "cluster"
        for section, fields in sections.items()
        for field, value in fields.items()
    ]
    shown = resolve(TABLES, again)
    assert all(shown[one.setting.name] == one.value for one in settings.all() if "cluster" not in one.setting.name)


def test_each_value_is_shown_with_its_source_and_another_default() -> None:
    text = as_toml(resolve(TABLES, GIVEN), ["cluster"])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "[cluster]",
        'preset = "unified" # default',
        'model = "builtin:tiny" # default',
        'model_name = "a \\"b\\" ü" # file.toml; default: ""',
        "lora = [] # default",
    ]


def test_programs_get_value_source_and_default() -> None:
    values = as_values(resolve(TABLES, GIVEN), ["dispatcher"])
    assert values["dispatcher.http.origins"] == {"value": ("*",), "source": "--set", "default": ()}
    assert values["dispatcher.placement.policy"]["source"] == "preset unified"


def test_settings_are_described_by_the_beginning_of_their_names() -> None:
    text = "\n".join(describe(TABLES, ["dispatcher.http.origins"], "dispatcher.http.o"))
    assert "**`dispatcher.http.origins`** = `[]` (a list of texts)" in text
    assert "Live only." in text
    assert "max_body_bytes" not in text
