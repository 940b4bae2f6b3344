"""An engine of several ranks without processes: the first rank's runner here, the others' in threads."""

import os
import socket
from pathlib import Path
from threading import Thread

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.execution.step_runner import StepRunner
from dunlin.engine.ranks.follower import follow
from dunlin.engine.ranks.frames import RankReceiver, RankSender
from dunlin.engine.ranks.leader import LeadingRunner, RankLeader
from dunlin.engine.ranks.pace import FollowingPace, LeadingPace, word_count
from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_words import SharedWords
from dunlin.engine.ranks.slab import RankSlab
from dunlin.engine.transfer.arena_slots import slots_by_layer
from tests.engine.build import SteppingClock
from tests.engine.ranks.two_ranks import load_parts


class RankedRunner(LeadingRunner):
    """The runner of rank 0, with what tests look at. `models` are the ranks' parts."""

    def __init__(self, directory: Path, limits: RunnerLimits | None = None, *, deterministic: bool = True) -> None:
        self.fd, ranks = os.memfd_create("ranks"), 2
        words = [SharedWords(self.fd, word_count(ranks)) for _ in range(ranks)]
        joined = [SharedMemoryCollective(self.fd, words[rank], rank, ranks) for rank in range(ranks)]
        self.models = load_parts(directory, joined, deterministic=deterministic)
        ours, theirs = socket.socketpair()
        self._socket = ours
        leader = RankLeader(RankSender([ours]), LeadingPace(words[0], ranks))
        first = self.models[0]
        memory = OwnMemory(RankSlab([each.decoder.kv for each in self.models], slots_by_layer(first.arena)))
        runner = EngineRunner(
            first.decoder, first.slots, SteppingClock(), limits, memory=memory, work_clock=no_clock, lockstep=leader
        )
        super().__init__(runner, leader)
        self._first = runner
        self.others_failed: list[BaseException] = []
        self._thread = Thread(target=self._follow, args=(theirs, words[1], self.models[1], limits), daemon=True)
        self._thread.start()

    @property
    def steps(self) -> StepRunner:
        return self._first.steps

    @property
    def layers(self) -> None:
        """They are fixed."""
        return

    def close(self) -> None:
        """The other rank ends when the first does; what it failed of is raised here."""
        self._socket.close()
        self._thread.join()
        for model in self.models:
            fd = model.arena.fd
            model.arena.close()
            os.close(fd)
        os.close(self.fd)
        for error in self.others_failed:
            raise error

    def _follow(
        self, theirs: socket.socket, words: SharedWords, model: LoadedModel, limits: RunnerLimits | None
    ) -> None:
        runner = EngineRunner(model.decoder, model.slots, SteppingClock(), limits, work_clock=no_clock)
        try:
            with theirs:
                follow(runner, RankReceiver(theirs), FollowingPace(words, 1, 2), no_clock)
        except EOFError:
            pass
        except BaseException as error:
            self.others_failed.append(error)


def no_clock() -> float:
    return 0.0
