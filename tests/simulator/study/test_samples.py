"""Samples of instances: one of each at every period, from the start of the run on."""

from typing import Any

from dunlin.messages.fleet import InstanceReport
from dunlin.messages.types import GroupRole
from simulator.cluster.world import World
from simulator.study.samples import Sampler


class Reporting:
    """An instance whose report and engine hold fixed numbers."""

    busy_s = 1.5
    moved_bytes = 640

    def __init__(self, **report: Any) -> None:
        self.given = InstanceReport(**report)

    def report(self) -> InstanceReport:
        return self.given


def sampler(world: World, instances: dict[str, Any], period_s: float = 0.5) -> Sampler:
    return Sampler(world, period_s, lambda: [(name, one, one) for name, one in instances.items()])


def test_a_sample_holds_the_reports_numbers_and_the_engines() -> None:
    one = Reporting(
        running=3,
        waiting=4,
        capacity_slots=100,
        free_slots=70,
        cached_slots=10,
        steps_total=5,
        tokens_total=6,
        prefill_tokens_total=7,
        preemptions_total=8,
        migrations_total=9,
        prefix_hit_tokens_total=11,
        recomputed_tokens_total=12,
        group=2,
        part=GroupRole.DECODE,
    )
    taken = sampler(World(), {"a": one})
    taken.sample(4.0)
    track = taken.tracks["a"]
    columns = {name: getattr(track, name).tolist() for name in track.__dataclass_fields__}
    assert columns == {
        "at_s": [4.0],
        "running": [3],
        "waiting": [4],
        "used_slots": [30],
        "cached_slots": [10],
        "capacity_slots": [100],
        "steps_total": [5],
        "step_busy_s": [1.5],
        "tokens_total": [6],
        "prefill_tokens_total": [7],
        "preemptions_total": [8],
        "migrations_total": [9],
        "moved_bytes_total": [640],
        "prefix_hit_tokens_total": [11],
        "recomputed_tokens_total": [12],
        "group": [2],
        "part": [int(GroupRole.DECODE)],
    }


def test_times_count_from_the_start_of_the_sampling() -> None:
    world = World()
    world.run_to(10.0)
    taken = sampler(world, {"a": Reporting()})
    taken.start()
    world.run_to(11.25)
    assert taken.tracks["a"].at_s.tolist() == [0.0, 0.5, 1.0]


def test_an_instance_that_comes_later_has_fewer_samples_and_one_that_left_no_more() -> None:
    world, instances = World(), {"a": Reporting()}
    taken = sampler(world, instances)
    taken.start()
    world.run_to(0.25)
    instances["b"] = instances.pop("a")
    world.run_to(1.25)
    assert {name: track.at_s.tolist() for name, track in taken.tracks.items()} == {"a": [0.0], "b": [0.5, 1.0]}
