"""The engine as a child process: it starts, computes, reports what is wrong, and never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.execution.remap import LayerRemapper
from dunlin.engine.process import main
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.options import CANNOT_CONTINUE, CANNOT_START, SPINS, EngineOptions, parse_options
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.messages.engine import (
    Close,
    EngineFailed,
    EngineReady,
    Interrupt,
    Interrupted,
    MapHost,
    Meet,
    Met,
    Remap,
    Resume,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import (
    FinishReason,
    Header,
    HostRegion,
    Region,
    RemapPhase,
    TransferKind,
    TransferStatus,
    Verdict,
    f32,
    i8,
    i32,
    i64,
)
from dunlin.model.errors import ModelError
from dunlin.model.kv_dtypes import FP8
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT
from tests.engine.build import damage, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.fakes.forks import shared_forks

TIMEOUT_S = 300.0


class Child:
    """One engine process, its socket and its memory."""

    def __init__(self, model: Path, arena_fd: int | None = None, **overrides: Any) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        self.arena_fd = os.memfd_create("arena") if arena_fd is None else arena_fd
        self.progress_fd = os.memfd_create("progress")
        self.progress = ProgressPage(self.progress_fd)
        values = {"kv_bytes": 3 << 20, "name": "a", "incarnation": 7, "parent_pid": os.getpid(), **overrides}
        fds: dict[str, Any] = {"socket_fd": theirs.fileno(), "arena_fd": self.arena_fd, "progress_fd": self.progress_fd}
        options = EngineOptions(model=model, **fds, **values)
        self.process = shared_forks().spawn(options.command(), os.environ, fds=options.fds)
        theirs.close()
        self._reader = FrameReader()
        self._events: list[tuple[Header, Any]] = []

    def send(self, *messages: Any) -> None:
        header = Header(Address("instance", "a", 7))
        self.socket.sendall(b"".join(frame(ENGINE_COMMAND.encode(header, message)) for message in messages))

    def receive(self) -> Any:
        while not self._events:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._events += [ENGINE_EVENT.decode(body) for body in self._reader.feed(data)]
        header, event = self._events.pop(0)
        assert header.sender == Address("engine", "a", 7)
        return event

    def receive_stood_by(self) -> bytes:
        """The empty frame with which one that stands by says that it is prepared."""
        (body,) = self._reader.feed(self.socket.recv(len(frame(b""))))
        return body

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.arena_fd)
        os.close(self.progress_fd)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2)


@pytest.fixture
def child(model: Path) -> Iterator[Child]:
    made = Child(model)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ready(model: Path) -> Iterator[tuple[Child, EngineReady]]:
    """A started engine and what it said of itself, for tests that leave it as it was."""
    made = Child(model)
    said = made.receive()
    assert isinstance(said, EngineReady)
    yield made, said
    assert made.process.poll() is None
    made.close()


def test_it_says_what_it_is_and_computes(ready: tuple[Child, EngineReady]) -> None:
    child, said = ready
    assert (list(said.layers), said.kv_dtype, said.kv_bytes_per_token) == ([0, 1, 2], "float32", 3 * 2 * 2 * 16 * 4)
    assert (said.slots, said.quantum, said.vocabulary, said.max_positions) == (4096, 256, 512, 4096)
    before = child.progress.passed
    end = len(PROMPT)
    # The second step is queued before the first has answered: its row names no token.
    child.send(make_open(max_tokens=2), make_step(1, (1, 0, end, 0)), make_step(2, (1, end, end + 1, end)))
    first, second = child.receive(), child.receive()
    assert [first.step, second.step] == [1, 2]
    assert [list(first.finish), list(second.finish)] == [[FinishReason.RUNNING], [FinishReason.LENGTH]]
    # A prompt has five safepoints in each of its three layers: after its projection, its attention, and each of the
    # three products behind it. A decode row has none: it counts its layers. Between steps progress is not counted.
    assert child.progress.passed == before + 3 * 5 + 3
    assert first.compute_s > 0
    assert second.idle_s >= 0
    child.send(Close(1))


def test_an_interrupt_is_answered_in_the_middle_of_a_long_step(ready: tuple[Child, EngineReady]) -> None:
    """The parent says so in the shared page, then over the socket; a step that was sent before comes first."""
    child, _ = ready
    prompt = [at % 500 for at in range(3000)]
    child.send(make_open(1, prompt), make_open(2), make_step(1, (1, 0, len(prompt), 0)))
    before = child.progress.passed
    while child.progress.passed < before + 2:  # the step is under way
        time.sleep(0.001)
    child.progress.call(7)
    child.send(make_step(2, (2, 0, len(PROMPT), 3000)), Interrupt(Verdict.SUSPEND, i64([1]), ticket=7))
    left, done, other = child.receive(), child.receive(), child.receive()
    assert (left.ticket, list(left.sequence), list(left.step), list(left.parked)) == (7, [1], [1], [1])
    assert left.layer[0] < 3
    assert (done.step, list(done.left), list(done.sequence)) == (1, [1], [])
    assert (other.step, list(other.sequence)) == (2, [2])
    child.send(Resume(3, i64([1])))
    assert list(child.receive().sequence) == [1]
    # Heard, so the next step is not stopped; nor is one without an interrupt.
    child.send(Interrupt(Verdict.DISCARD, ticket=8))
    assert child.receive() == Interrupted(ticket=8)
    child.send(Close(1), Close(2))


def test_it_ends_when_the_parent_closes_the_socket(child: Child) -> None:
    assert isinstance(child.receive(), EngineReady)
    child.socket.close()
    assert child.wait() == 0


def test_ctrl_c_is_the_parents_business(ready: tuple[Child, EngineReady]) -> None:
    child, _ = ready
    os.kill(child.process.pid, signal.SIGINT)
    child.send(make_step(1, (9, 0, 1, 0)))
    assert child.receive() == StepDone(step=1, **{**_empty_columns(), "idle_s": pytest.approx(0, abs=TIMEOUT_S)})


def _empty_columns() -> dict[str, Any]:
    columns = {"sequence": i64(), "token": i32(), "logprob": f32(), "finish": i8(), "dropped": i64([9])}
    return {**columns, "compute_s": pytest.approx(0, abs=TIMEOUT_S)}


def test_a_broken_model_is_reported_with_its_cause(tmp_path: Path) -> None:
    child = Child(tmp_path / "nowhere")
    failed = child.receive()
    assert failed == EngineFailed(
        f"cannot start: {tmp_path / 'nowhere'}: no such directory; "
        "give a directory with a Hugging Face checkpoint, or builtin:chat"
    )
    assert child.wait() == CANNOT_START
    child.close()


def refusal(model: Path, **overrides: Any) -> str:
    """The reason of an engine that cannot start, run here: what becomes of its process, the test before this shows."""
    ours, theirs = socket.socketpair()
    memory = [os.memfd_create(name) for name in ("arena", "progress")]
    values = {"kv_bytes": 3 << 20, "name": "a", "incarnation": 7, "parent_pid": os.getpid(), **overrides}
    options = EngineOptions(model=model, socket_fd=-1, arena_fd=memory[0], progress_fd=memory[1], **values)
    with ours, theirs:
        channel = main.ParentChannel(theirs, Address("engine", "a", 7))
        assert main._start_and_serve(options, channel) == CANNOT_START
        (body,) = FrameReader().feed(ours.recv(1 << 16))
    for fd in memory:
        os.close(fd)
    _, failed = ENGINE_EVENT.decode(body)
    assert isinstance(failed, EngineFailed)
    return failed.reason


def test_deterministic_bf16_is_refused(model: Path) -> None:
    assert "deterministic mode computes in float32" in refusal(model, dtype="bfloat16", deterministic=True)


@pytest.mark.parametrize(("dtype", "deterministic"), [("bfloat16", False), ("float32", True)])
def test_a_model_without_numbers_is_refused(tmp_path: Path, dtype: str, deterministic: bool) -> None:
    model = make_checkpoint(tmp_path)
    for token in range(0, 512, 8):
        damage(model, token, float("inf"))
    reason = refusal(model, dtype=dtype, deterministic=deterministic)
    assert reason.startswith(f"cannot start: {model}: the logits are not finite in {dtype}: the checkpoint is")
    assert ("compute in float32" in reason) == (dtype == "bfloat16")


def test_one_that_stands_by_and_is_needed_at_once_does_not_rehearse_first(model: Path) -> None:
    child = Child(model, standby=True)
    child.socket.sendall(b"\1")
    assert child.receive_stood_by() == b""
    assert isinstance(child.receive(), EngineReady)
    assert child.process.poll() is None
    child.close()


class Running:
    """What a running engine has in the arena after it dropped a layer: KV in what was that layer's weights."""

    def __init__(self, model: Path) -> None:
        self.fd = os.memfd_create("arena")
        self.options = EngineOptions(model, "a", 7, os.getpid(), -1, self.fd, -1, kv_bytes=3 << 20)
        loaded = load_model(model, "float32", 3 << 20, numerics.fast_numerics(), self.fd)
        self.arena = loaded.arena
        self.remapper = LayerRemapper(loaded.arena, loaded.weights, CheckpointSource(model))
        for phase in (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV):
            self.remap(Remap(1, phase, i32([0, 2])))
        for layer in (0, 2):
            loaded.decoder.kv[layer][: self.arena.slots] = float("inf")

    def remap(self, order: Remap) -> None:
        self.remapper.begin(order)
        while self.remapper.busy:
            self.remapper.advance()

    def memory(self) -> bytes:
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)


class Waiting:
    """A channel on which nothing comes."""

    def raise_if_activated(self) -> None: ...


def test_a_standby_process_leaves_the_arena_as_it_is_and_goes_on_with_what_it_finds(model: Path) -> None:
    running = Running(model)
    before, slots = running.memory(), running.arena.slots
    child = Child(model, running.fd, standby=True)
    assert child.receive_stood_by() == b""
    assert running.memory() == before
    running.arena.close()
    child.socket.sendall(b"\1")
    ready = child.receive()
    assert isinstance(ready, EngineReady)
    assert (list(ready.layers), ready.slots) == ([0, 2], slots)
    assert slots > 4096
    assert running.memory() == before, "it loads nothing that is there"
    child.close()


def test_a_rehearsal_counts_unless_the_arena_changed_meanwhile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, channel = Running(model), cast(main.ParentChannel, Waiting())
    for faulty in (False, True):
        for changes in (False, True):

            def check(loaded: LoadedModel, *rest: Any, changes: bool = changes, faulty: bool = faulty) -> range:
                assert loaded.layers == (0, 2)
                if changes:
                    for phase in (RemapPhase.PREPARE, RemapPhase.ABORT):
                        running.remap(Remap(9, phase, i32([0, 1, 2])))
                if faulty:
                    raise ModelError(model, "nothing is a number", "-")
                return range(1, 3)

            monkeypatch.setattr(main, "check_model", check)
            if faulty and not changes:
                with pytest.raises(ModelError, match="nothing is a number"):
                    main._rehearse(running.options, channel)
            else:
                assert main._rehearse(running.options, channel) == (None if changes else range(1, 3))
    running.arena.close()
    os.close(running.fd)


def test_without_a_loaded_model_there_is_nothing_to_rehearse(model: Path) -> None:
    fd = os.memfd_create("arena")
    options = EngineOptions(model, "a", 7, os.getpid(), -1, fd, -1, kv_bytes=3 << 20)
    assert main._rehearse(options, cast(main.ParentChannel, Waiting())) is None
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_the_environment_bounds_how_long_threads_spin_unless_it_says_so_itself() -> None:
    options = EngineOptions(Path("/m"), "a", 7, 1, 3, 4, 5, kv_bytes=9)
    assert options.environment({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": str(SPINS)}
    for told in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}):
        assert options.environment(told) == told


def test_too_little_memory_for_kv_is_said(model: Path) -> None:
    assert "give at least 196608" in refusal(model, kv_bytes=1000)


def test_what_it_lacks_it_says_and_goes_on(ready: tuple[Child, EngineReady]) -> None:
    child, _ = ready
    child.send(
        MapHost("/nowhere", 100, 1), Close(5), make_step(1, (1, 0, 1, 0), stride=make_step(0, (2, 0, 1, 0)).sequence)
    )
    assert child.receive() == Unsupported(
        "MapHost", "/nowhere of 100 bytes: [Errno 2] No such file or directory: '/nowhere'"
    )
    assert child.receive() == Unsupported("Step", "a stride of a row that is no stripe of a ring", step=1)
    assert child.process.poll() is None


def test_garbage_on_the_socket_ends_it_with_a_reason(child: Child) -> None:
    assert isinstance(child.receive(), EngineReady)
    child.socket.sendall(frame(b"\xff\xff"))
    assert "cannot go on: CodecError" in child.receive().reason
    assert child.wait() == CANNOT_CONTINUE


def test_it_dies_with_its_parent(model: Path, tmp_path: Path) -> None:
    """A parent that is killed takes its engine along, though a grandparent still holds the socket."""
    script = (
        "import os, socket, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from dunlin.engine.process.options import EngineOptions\n"
        "ours, theirs = socket.socketpair()\n"
        "fds = dict(socket_fd=theirs.fileno(), arena_fd=os.memfd_create('a'), progress_fd=os.memfd_create('p'))\n"
        "o = EngineOptions(Path(sys.argv[1]), 'a', 1, os.getpid(), kv_bytes=3 << 20, **fds)\n"
        "p = subprocess.Popen(o.command(), pass_fds=o.fds)\n"
        "ours.recv(1)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(model)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + TIMEOUT_S
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(pid)
    parent.stdout.close()


def test_it_is_tied_to_its_parent_before_it_loads_torch(model: Path, tmp_path: Path) -> None:
    """To load it takes minutes on a busy machine: for so long an engine without a parent would stay behind."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was loaded')")
    options = EngineOptions(model, "a", 7, 1 << 22, 0, 0, 0, kv_bytes=3 << 20)
    path = os.pathsep.join((str(tmp_path), os.getcwd()))
    done = subprocess.run(options.command(), env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, "torch was loaded" in done.stderr) == (CANNOT_START, False)
    assert f"started by process {1 << 22}, but the parent is {os.getpid()}" in done.stderr


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_kv_in_fp8_takes_a_quarter_and_comes_back_from_the_host_as_it_was(model: Path) -> None:
    child = Child(model, narrow_kv=FP8)
    host_fd = os.memfd_create("host")
    os.ftruncate(host_fd, 1 << 20)
    try:
        said, end = child.receive(), len(PROMPT)
        assert (said.kv_dtype, said.kv_bytes_per_token, said.slots) == (FP8, 3 * 2 * 2 * 16, 4 * 4096)
        child.send(MapHost(f"/proc/{os.getpid()}/fd/{host_fd}", 1 << 20, 1), make_open(max_tokens=2))
        child.send(make_step(1, (1, 0, end, 0)), make_step(2, (1, end, end + 1, end)))
        first, second = child.receive(), child.receive()
        region, size = Region(0, 3, 0, end), 3 * 2 * 2 * 16 * end
        there = i64([0]), i64([end])
        out = Transfer(1, TransferKind.SLAB_TO_HOST, 1, region, *there, host=HostRegion(0, 1, 0, size))
        child.send(out)
        kept = child.receive()
        assert (kept.status, kept.detail) == (TransferStatus.OK, "")
        back = i64([500]), i64([end])
        host = HostRegion(0, 1, 0, size, kept.checksum)
        child.send(make_open(2, [*PROMPT, first.token[0]], prompt_tokens=end))
        child.send(Transfer(2, TransferKind.HOST_TO_SLAB, 2, region, *back, host=host))
        restored = child.receive()
        assert (restored.status, restored.detail) == (TransferStatus.OK, "")
        child.send(make_step(3, (2, end, end + 1, 500 + end)))
        assert list(child.receive().token) == list(second.token)
    finally:
        child.close()
        os.close(host_fd)


def test_deterministic_fp8_is_refused(model: Path) -> None:
    assert "keeps KV in float32, not float8_e4m3fn" in refusal(model, narrow_kv=FP8, deterministic=True)


def test_the_command_line_brings_the_options_back() -> None:
    options = EngineOptions(Path("/m"), "a", 7, 1, 3, 4, 5, kv_bytes=9, dtype="bfloat16", deterministic=True, threads=2)
    assert parse_options(options.command()[3:]) == options


def test_an_unknown_dtype_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = EngineOptions(Path("/m"), "a", 7, 1, 3, 4, 5, kv_bytes=9, dtype="int3")
    with pytest.raises(SystemExit):
        parse_options(options.command()[3:])
    assert "invalid choice: 'int3'" in capsys.readouterr().err


def test_kv_pushed_into_another_engines_slots_goes_on_there_with_the_same_text(model: Path) -> None:
    """Sent while the first computes it, verified by the second, which computes the next token from it."""
    first, second = Child(model), Child(model)
    try:
        ready = [child.receive() for child in (first, second)]
        peer, end = Address("engine", "second"), len(PROMPT)
        region, extents, there = Region(0, 3, 0, end), (i64([0]), i64([end])), (i64([100, 50]), i64([4, end - 4]))
        to_peer: dict[str, Any] = {
            "peer": peer,
            "peer_extent_start": there[0],
            "peer_extent_length": there[1],
            "step": 1,
        }
        push = Transfer(1, TransferKind.SLAB_TO_PEER, 1, region, *extents, **to_peer)
        steps = make_step(1, (1, 0, end, 0)), make_step(2, (1, end, end + 1, end))
        first.send(Meet(peer, ready[1].agent), make_open(), steps[0], push, steps[1])
        events = [first.receive() for _ in range(4)]
        assert events[0] == Met(peer)
        (sent,) = [event for event in events if isinstance(event, TransferDone)]
        (begun, following) = [event for event in events if isinstance(event, StepDone)]
        assert (sent.status, sent.detail) == (TransferStatus.OK, "")
        look = Transfer(2, TransferKind.PEER_TO_SLAB, 5, region, *there, checksum=sent.checksum)
        opened = make_open(5, [*PROMPT, begun.token[0]], prompt_tokens=end)
        second.send(opened, look, make_step(9, (5, end, end + 1, 300), after=i64([2])))
        verified, done = second.receive(), second.receive()
        assert (verified.status, list(done.token)) == (TransferStatus.OK, list(following.token))
        wrong = Transfer(3, TransferKind.PEER_TO_SLAB, 0, region, *there, checksum=sent.checksum ^ 1)
        second.send(wrong)
        assert second.receive().status is TransferStatus.CORRUPT
    finally:
        first.close()
        second.close()
