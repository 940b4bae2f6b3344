"""From flags to cases: what instances aim at, and which there are."""

import argparse

import pytest

from cli.commands.simulate.cases import make_cases, objectives_of
from cli.commands.simulate.sim import add
from cli.common.errors import CliError
from dunlin.workload.loadgen.slo import parse_slos
from simulator.study.engine_groups import EngineGroup
from simulator.study.sweep import Case

TTFT, TPOT = "instance.objectives.ttft_s", "instance.objectives.tpot_s"


def cases(*flags: str, slo: tuple[str, ...] = ()) -> list[Case]:
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    given = [*flags, *(word for text in slo for word in ("--slo", text))]
    return make_cases(parser.parse_args(["sim", "--workload", "poisson:1,duration=1", *given]), parse_slos(slo))


@pytest.mark.parametrize(
    ("slos", "objectives"),
    [
        ((), {}),
        (("ttft=2,tpot=0.1",), {TTFT: 2.0, TPOT: 0.1}),
        (("jct=9",), {}),
        (("chat:ttft=1", "ttft=3,tpot=0.2"), {TTFT: 1.0, TPOT: 0.2}),
        (("batch:ttft=0.1", "chat:tpot=0.05"), {TPOT: 0.05}),
    ],
)
def test_instances_aim_at_the_strictest_promise_to_interactive_requests(
    slos: tuple[str, ...], objectives: dict[str, float]
) -> None:
    assert objectives_of(parse_slos(slos)) == objectives


def test_a_case_has_the_objectives_unless_settings_say_otherwise() -> None:
    (one,) = cases(slo=("ttft=2,tpot=0.1",))
    assert dict(one.settings) == {TTFT: 2.0, TPOT: 0.1}
    first, second = cases(
        "--preset", "chunked,conserve", "--set", f"conserve:{TTFT}=0.7", slo=("ttft=2",)
    )  # fmt: skip
    assert (dict(first.settings)[TTFT], dict(second.settings)[TTFT]) == (2.0, 0.7)


def test_engines_are_named_instead_of_counted() -> None:
    (one,) = cases("--engine", "2:tp=2", "--engine", "1:device=h200")
    assert one.engines == (EngineGroup(2, "a100", 2), EngineGroup(1, "h200", 1))
    assert cases()[0].groups == (EngineGroup(1, "a100"),)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--engine", "2", "--instances", "3"), "leave --instances"),
        (("--engine", "2:role=both"), "--engine '2:role=both': no role"),
    ],
)
def test_a_mistake_is_named(flags: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(CliError, match=complaint):
        cases(*flags)
