"""An engine's transfers in a process of their own, with memory that outlives it: `python -m` this file is the child."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from dunlin.effects import Address
from dunlin.messages.types import TransferKind, TransferStatus, i64
from tests.engine.transfer.engines import LAYERS, SLOT_BYTES, Engine, peer_transfer, slots_of


class ReceiverProcess:
    """Starts the child, asks it, and restarts it over the same memory files."""

    def __init__(self) -> None:
        self.address = Address("engine", "b")
        self._fds = os.memfd_create("arena"), os.memfd_create("page")
        self._start()

    def __enter__(self) -> "ReceiverProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kill()

    def restart(self) -> None:
        """Kill the child, and start another one over its memory."""
        self._kill()
        self._start()

    def slots(self, slots: Sequence[int]) -> bytes:
        return bytes.fromhex(self._ask("slots", list(slots)))

    def arena(self) -> bytes:
        """All of the memory file, as the child sees it."""
        return bytes.fromhex(self._ask("arena"))

    def verify(self, checksum: int) -> TransferStatus:
        """What the child's own look at slots 3, 7 and 8 says."""
        return TransferStatus(self._ask("verify", checksum))

    def flip_byte_of(self, slot: int) -> None:
        self._ask("flip", slot)

    def _start(self) -> None:
        command = [sys.executable, "-m", "tests.engine.transfer.receiver_process", *map(str, self._fds)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=self._fds, text=True
        )
        self.agent = bytes.fromhex(self._ask("agent"))

    def _kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.communicate()

    def _ask(self, what: str, argument: Any = None) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps([what, argument]), file=self._child.stdin, flush=True)
        return json.loads(self._child.stdout.readline())


def answer(engine: Engine, what: str, argument: Any) -> Any:
    engine.read_arena()
    match what:
        case "agent":
            return engine.access.agent.hex()
        case "slots":
            return slots_of(engine.kv, argument).hex()
        case "arena":
            return b"".join(engine.arena_kv(layer) for layer in range(LAYERS)).hex()
        case "flip":
            at = engine.runs[0][0][0] + argument * SLOT_BYTES
            os.pwrite(engine.arena_fd, bytes([os.pread(engine.arena_fd, 1, at)[0] ^ 1]), at)
            return None
        case _:
            extents = {"extent_start": i64([3, 7]), "extent_length": i64([1, 2])}
            values = {"kind": TransferKind.PEER_TO_SLAB, "checksum": argument, **extents}
            engine.queue.add(peer_transfer(1, engine.address, **values))
            (ended,) = engine.finish()
            return int(ended.done.status)


if __name__ == "__main__":
    arena_fd, page_fd = map(int, sys.argv[1:])
    made = Engine("b", seed=2, arena_fd=arena_fd, page_fd=page_fd)
    for line in sys.stdin:
        print(json.dumps(answer(made, *json.loads(line))), flush=True)
