"""Files, variables and words: their form, and what is said of those that have none."""

from pathlib import Path

import pytest

from dunlin.config.errors import ConfigError
from dunlin.config.sources import Given, as_word, from_environment, from_file, from_words, variable

BUDGET = "instance.scheduler.budget_tokens"


def test_only_variables_with_a_role_are_settings() -> None:
    environ = {
        "DUNLIN_DATA_DIR": "/d",
        "DUNLIN_ETCD": "x",
        "DUNLIN_INSTANCE_FLAGS": "",
        variable(BUDGET): "7",
        "X": "1",
    }
    assert from_environment(environ) == [Given(BUDGET, "7", "DUNLIN_INSTANCE__SCHEDULER__BUDGET_TOKENS")]


@pytest.mark.parametrize("word", ["instance.scheduler.budget_tokens", "=3", ""])
def test_a_word_without_a_name_or_a_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="give NAME=VALUE"):
        from_words([word])


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config .*no\.toml: No such file"):
        from_file(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("a = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml: .*line 1"):
        from_file(tmp_path / "bad.toml")


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000 + "]" * 5000])
def test_a_file_that_python_cannot_read_is_named(tmp_path: Path, value: str) -> None:
    (tmp_path / "huge.toml").write_text(f"a = {value}\n")
    with pytest.raises(ConfigError, match=r"huge\.toml: "):
        from_file(tmp_path / "huge.toml")


def test_tables_of_a_file_are_the_parts_of_names(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a.b = 1\n[c]\nd = ['x']\n[c.e]\nf = true\n")
    assert from_file(path) == [
        Given("a.b", 1, str(path)),
        Given("c.d", ["x"], str(path)),
        Given("c.e.f", True, str(path)),
    ]


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (0.5, "0.5"), (("a", "b"), "a,b"), ("=x", "=x"), ((), "")])
def test_a_value_is_a_word_and_back(value: object, text: str) -> None:
    assert as_word(Given("a.b", value, "")) == f"a.b={text}"
    assert from_words([f"a.b={text}"]) == [Given("a.b", text, "--set")]
