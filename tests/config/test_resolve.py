"""Where values come from, which of them wins, and what is said about those that cannot be taken."""

from pathlib import Path
from typing import Any

import pytest

from dunlin.config.errors import ConfigError
from dunlin.config.resolve import Settings, resolve
from dunlin.config.sources import Given, as_word, from_all
from services.settings import TABLES

BUDGET = "instance.scheduler.budget_tokens"


def holds(*given: Given) -> Settings:
    return resolve(TABLES, given)


def taken(name: str, value: Any) -> Any:
    return holds(Given(name, value, "--set"))[name]


def test_each_source_wins_over_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, later = tmp_path / "a.toml", tmp_path / "b.toml"
    file.write_text("[instance.scheduler]\nbudget_tokens = 2\nmax_running = 2\nmax_waiting = 2\npolicy = 'chunked'\n")
    later.write_text("[instance]\nscheduler.max_running = 3\nscheduler.max_waiting = 3\n[cluster]\npreset = 'vllm'\n")
    monkeypatch.setenv("DUNLIN_INSTANCE__SCHEDULER__MAX_WAITING", "4")
    monkeypatch.setenv("DUNLIN_INSTANCE__SCHEDULER__ALLOCATE_AHEAD_TOKENS", "4")
    words = ["instance.scheduler.allocate_ahead_tokens=5", "instance.migration.tail_tokens=5"]
    flags = [Given("instance.migration.tail_tokens", 6, "--flag")]
    settings = resolve(TABLES, from_all([file, later], words, flags))
    found = {name: (settings[f"instance.{name}"], settings.source(f"instance.{name}")) for name in (
        "checkpoint.engine_share", "preemption.mode", "scheduler.policy", "scheduler.budget_tokens",
        "scheduler.max_running", "scheduler.max_waiting", "scheduler.allocate_ahead_tokens", "migration.tail_tokens",
    )}  # fmt: skip
    assert found == {
        "checkpoint.engine_share": (0.025, "default"),
        "preemption.mode": ("recompute", "preset vllm"),
        "scheduler.policy": ("chunked", str(file)),
        "scheduler.budget_tokens": (2, str(file)),
        "scheduler.max_running": (3, str(later)),
        "scheduler.max_waiting": (4, "DUNLIN_INSTANCE__SCHEDULER__MAX_WAITING"),
        "scheduler.allocate_ahead_tokens": (5, "--set"),
        "migration.tail_tokens": (6, "--flag"),
    }
    assert settings.is_given(BUDGET)
    assert not settings.is_given("instance.preemption.mode")
    assert not settings.is_given("instance.checkpoint.engine_share")


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        (BUDGET, "64", 64),
        ("instance.checkpoint.engine_share", 0, 0.0),
        ("instance.checkpoint.engine_share", "0.1", 0.1),
        ("instance.kv_cache.prefix_caching", "false", False),
        ("kvstore.tier.alignment_bytes", "64", 64),
        ("kvstore.tier.capacity_bytes", "1.5 GiB", 3 << 29),
        ("instance.engine.kv_bytes", "512MiB", 1 << 29),
        ("dispatcher.http.origins", "https://a.example, *", ("https://a.example", "*")),
        ("dispatcher.http.origins", ["https://a.example"], ("https://a.example",)),
        ("dispatcher.http.origins", "", ()),
        ("cluster.model_name", "7", "7"),
    ],
)
def test_values_are_read_as_their_setting_has_them(name: str, given: Any, value: Any) -> None:
    found = taken(name, given)
    assert (found, type(found)) == (value, type(value))
    assert taken(*as_word(Given(name, found, "")).split("=", 1)) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (BUDGET, 0), (BUDGET, "many"), (BUDGET, 1.5), (BUDGET, True), (BUDGET, [1]), (BUDGET, "1_000"),
        ("instance.checkpoint.engine_share", "nan"), ("monitor.liveness.stuck_s", float("inf")),
        ("instance.kv_cache.prefix_caching", "yes"), ("cluster.preset", "best"), ("cluster.model", 7),
        ("kvstore.tier.alignment_bytes", 65), ("dispatcher.http.origins", [1]), ("instance.engine.kv_bytes", "2 GB"),
        ("instance.engine.kv_bytes", f"{'9' * 400}GiB"), ("instance.checkpoint.engine_share", 10**400),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_place_and_its_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        holds(Given(name, value, "/etc/x.toml"))
    assert str(caught.value).startswith(f"{name} is {value!r} (/etc/x.toml): needs ")


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("instance.budget_tokens", f"did you mean {BUDGET}?"),
        ("instance.scheduler.budget_token", f"did you mean {BUDGET}?"),
        ("instance.checkpoint_share", "did you mean instance.checkpoint.engine_share?"),
        ("dispatcher.max_queued", "did you mean dispatcher."),
        ("manager.move_gap", "see dunlin config list manager"),
        ("global_manager.x", "names begin with cluster, dispatcher, instance"),
        ("x", "names begin with cluster"),
    ],
)
def test_a_bad_name_is_told_what_was_probably_meant(name: str, guess: str) -> None:
    with pytest.raises(ConfigError) as caught:
        holds(Given(name, 1, "--set"))
    assert str(caught.value).startswith(f"{name} (--set): there is no such setting")
    assert guess in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)budget_tokens is 0.*; instance\.x .*; manager\.y "):
        holds(*(Given(name, 0, "--set") for name in (BUDGET, "instance.x", "manager.y")))


def test_values_that_do_not_go_together_are_refused() -> None:
    settings = holds(Given("instance.engine.dtype", "bf16", ""), Given("instance.engine.deterministic", True, ""))
    with pytest.raises(ConfigError, match="instance: deterministic computes in fp32, not bf16"):
        settings.configure("instance", TABLES["instance"])
    with pytest.raises(ConfigError, match="dispatcher: 'here' is not an origin"):
        holds(Given("dispatcher.http.origins", ["here"], "")).configure("dispatcher", TABLES["dispatcher"])


def test_a_service_takes_its_own_settings_from_a_file_for_all() -> None:
    own = {role: TABLES[role] for role in ("cluster", "instance")}
    given = [Given("dispatcher.anything", 1, "f"), Given(BUDGET, 9, "f")]
    assert resolve(own, given)[BUDGET] == 9
    with pytest.raises(ConfigError, match="instnace"):
        resolve(own, [Given("instnace.scheduler.budget_tokens", 1, "f")])
