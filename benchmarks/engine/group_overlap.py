"""What steps of a group compute and wait for, layer by layer:
`python -m benchmarks.engine.group_overlap [--members 2] [--virtual]`.

Engine processes that map each other's memory, one thread each, compute a prompt in chunks: as a ring (stripes' K/V go
round, and all members answer for the chunks before), by queries (blocks), and then tokens by masters. Then the cost of
a step with which a second member joins, with empty slots (LoongServe, figure 14).

A round is one layer: the linear layers, attention (own keys, and what is served to others), and waiting for peers. An
exchange lasts from the first byte queued to the last one taken in; its hidden share is what of that was not waited for.
Where processes share cores a wait is also the time that others compute; `--virtual` gives each member a core of its own
by CPU time (`overlap_virtual.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.overlap_plan import JOIN, TOKENS, OverlapPlan, part_of_step
from benchmarks.engine.overlap_probe import LayerTimes, RoundClock, timed_iterations
from benchmarks.engine.overlap_virtual import StampedPipes, VirtualCore, run_plan
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Close, Meet, Open, StepDone
from dunlin.messages.types import SamplingParams, i32, i64

SHAPE = CheckpointShape(8, 512, 8, 4, 64, 1408, 8192, 65536, dtype="bfloat16")
"""32 million parameters: 8 KiB of KV per token."""
SLOT_BYTES = 2 * SHAPE.kv_heads * SHAPE.head_dim * 2
SLOTS = 16384
ROOM_BYTES = 1 << 23
PAUSE_S = 50e-6
WAYS = ("ring", "queries", "tokens", "join")


class MemberProcess:
    """One engine in this process, which has met those of the other members."""

    def __init__(self, me: int, folder: Path) -> None:
        torch.set_num_threads(1)
        self.me = me
        arena_fd, page_fd = os.memfd_create("dunlin-bench-arena"), os.memfd_create("dunlin-bench-page")
        kv_bytes = SLOTS * SHAPE.layers * SLOT_BYTES
        chosen, _ = numerics.choose_fast_numerics()
        loaded = load_model(folder, "bfloat16", kv_bytes, chosen, arena_fd)
        slab, rooms = slab_of(loaded.arena, loaded.decoder.kv), TransitRooms(8, ROOM_BYTES)
        self.access = PeerAccess(page_fd, rooms)
        self.access.publish(arena_fd, slab, kv_file_runs(loaded.arena))
        own = OwnMemory(slab, rooms, self.access)
        self.runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter, memory=own)

    def run(self, plan: OverlapPlan, clock: RoundClock) -> list[list[LayerTimes]]:
        """The layers of each step of the plan; an empty list where this member has no part of it."""
        self.open(plan)
        found: list[list[LayerTimes]] = []
        for index in range(plan.steps):
            step = part_of_step(plan, index, self.me, SHAPE.layers)
            found.append([] if step is None else self._step(step, clock))
        self.close(plan)
        return found

    def meet(self, agents: Sequence[str]) -> None:
        """Map the memory of the others."""
        for other, agent in enumerate(agents):
            if other != self.me:
                self.runner.receive(Meet(Address("engine", f"member-{other}"), bytes.fromhex(agent)))

    def open(self, plan: OverlapPlan) -> None:
        """Tell the engine of the prompt."""
        joins = plan.way == "join" and self.me > 0
        tokens = i32([(7 * i + i * i) % SHAPE.vocab for i in range(plan.prompt + joins * (JOIN + 1))])
        opened = Open(plan.number, tokens, plan.prompt, 64, SamplingParams(temperature=0.0))
        elsewhere: dict[str, Any] = {"extent_start": i64([-1]), "extent_length": i64([plan.prompt + JOIN])}
        self.runner.receive(replace(opened, **elsewhere) if joins else opened)

    def close(self, plan: OverlapPlan) -> None:
        """It is computed."""
        self.runner.receive(Close(plan.number))

    @torch.inference_mode()
    def _step(self, step: Any, clock: RoundClock) -> list[LayerTimes]:
        clock.begin()
        events: list[Any] = list(self.runner.receive(step))
        while self.runner.busy:
            events += self.runner.work(lambda: None)
            if self.runner.is_waiting:
                time.sleep(PAUSE_S)
        (done,) = events
        assert isinstance(done, StepDone), done
        assert not done.left, done
        return clock.layers


def be_member(me: int, folder: Path) -> None:
    """A member's process: told its peers, then one plan after the other; answers with what each layer took."""
    clock = RoundClock(time.perf_counter)
    with timed_iterations(clock):
        member = MemberProcess(me, folder)
        print(member.access.agent.hex(), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            if "agents" in told:
                member.meet(told["agents"])
                print("met", flush=True)
                continue
            steps = member.run(OverlapPlan(**told), clock)
            print(json.dumps([[asdict(layer) for layer in step] for step in steps]), flush=True)


@dataclass
class Found:
    """Layers of the last steps of one way, of all members that had rows."""

    layers: list[LayerTimes] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def line(self, layer: int) -> str:
        """Medians of one layer."""
        some = [each for each in self.layers if each.layer == layer]
        return _medians(some)

    def add(self, steps: Sequence[Sequence[LayerTimes]]) -> None:
        """A step's layers, by member."""
        for layers in steps:
            self.layers += layers
        self.step_s.append(max(sum(each.whole_s for each in layers) for layers in steps if layers))

    @property
    def hidden(self) -> float:
        """The share of all exchanges that was not waited for."""
        lasted = sum(each.exchange_s for each in self.layers)
        return 1.0 - sum(each.wait_s for each in self.layers) / lasted if lasted else 1.0


def _medians(layers: Sequence[LayerTimes]) -> str:
    parts = ("linear_s", "attend_s", "wait_s", "exchange_s")
    text = [f"{name.removesuffix('_s')} {1e3 * median(getattr(each, name) for each in layers):.2f}" for name in parts]
    return ", ".join(text) + " ms"


@contextmanager
def member_processes(count: int, folder: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start them, and have them meet; they end with their standard input."""
    command = [sys.executable, "-m", "benchmarks.engine.group_overlap", "--folder", str(folder), "--member"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([*command, str(me)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for me in range(count)
        ]
        for process in processes:
            stack.callback(process.kill)
        agents = [_read(process).strip() for process in processes]
        tell(processes, {"agents": agents})
        assert [_read(process).strip() for process in processes] == ["met"] * count
        yield processes


def tell(processes: Sequence["subprocess.Popen[str]"], message: dict[str, Any]) -> None:
    """The same to all."""
    for process in processes:
        assert process.stdin is not None
        print(json.dumps(message), file=process.stdin, flush=True)


def _read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


Run = Callable[[OverlapPlan], list[list[list[LayerTimes]]]]
"""Computes a prompt; returns the layers by member and step."""


def in_processes(plan: OverlapPlan, processes: Sequence["subprocess.Popen[str]"]) -> list[list[list[LayerTimes]]]:
    """One prompt at members that run at once, by the clock on the wall."""
    tell(processes, asdict(plan))
    answers = [json.loads(_read(process)) for process in processes]
    return [[[LayerTimes(**layer) for layer in step] for step in steps] for steps in answers]


@contextmanager
def contestants(members: int, is_virtual: bool, folder: Path) -> Iterator[Run]:
    """What runs plans: processes, or engines that take turns here, each on a core of its own by its CPU time."""
    with ExitStack() as stack:
        if not is_virtual:
            processes = stack.enter_context(member_processes(members, folder))
            yield lambda plan: in_processes(plan, processes)
            return
        stack.enter_context(timed_iterations(RoundClock(time.thread_time)))
        stack.enter_context(StampedPipes.installed())
        made = [MemberProcess(me, folder) for me in range(members)]
        for each in made:
            each.meet([one.access.agent.hex() for one in made])
        cores = [VirtualCore(each) for each in made]
        yield lambda plan: run_plan(plan, cores, SHAPE.layers)


def measure(members: int, chunk: int, chunks: int, rounds: int, run: Run) -> dict[str, Found]:
    """Each way in turns; the first round is no figure. Of a prompt the last step counts, or the last few tokens."""
    found = {way: Found() for way in WAYS}
    for turn in range(rounds + 1):
        for index, way in enumerate(WAYS):
            plan = OverlapPlan(1 + turn * len(WAYS) + index, way, members, chunk, chunks)
            by_member = run(plan)
            for step in range(plan.first_counted, plan.steps) if turn else ():
                found[way].add([steps[step] for steps in by_member])
        say(f"round {turn}; load {os.getloadavg()[0]:.1f}")
    return found


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--members", type=int, default=2)
    arguments.add_argument("--chunk", type=int, default=512, help="tokens of a chunk per member")
    arguments.add_argument("--chunks", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--virtual", action="store_true", help="by CPU time, each member on a core of its own")
    arguments.add_argument("--member", type=int, default=-1, help="be that member's process")
    arguments.add_argument("--folder", type=Path, help="of the model, for a member")
    given = arguments.parse_args(argv)
    if given.member >= 0:
        be_member(given.member, given.folder)
        return 0
    clock = "virtual cores" if given.virtual else "processes"
    outcome = BenchmarkResult(f"overlap of exchanges with computing: {given.members} members, {clock}")
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder), "llama", SHAPE)
        with contestants(given.members, given.virtual, Path(folder)) as run:
            found = measure(given.members, given.chunk, given.chunks, given.rounds, run)
    outcome.figures["cores, load average"] = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    joined = found.pop("join").step_s
    before, after = joined[:: TOKENS - 2], [joined[at :: TOKENS - 2] for at in (JOIN - 2, JOIN - 1)]
    outcome.figures["a token before a member joins, s"] = median(before)
    outcome.figures["the one with which it joins; the next, over that"] = [
        median(a) / median(before) - 1 for a in after
    ]
    for way, each in found.items():
        for layer in range(SHAPE.layers):
            outcome.figures[f"{way}, layer {layer}"] = each.line(layer)
        outcome.figures[f"{way}: all layers"] = _medians(each.layers)
        outcome.figures[f"{way}: step, s"] = median(each.step_s)
        outcome.figures[f"{way}: share of exchanges hidden"] = each.hidden
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
