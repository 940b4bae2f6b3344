"""What a sequence waited for since its last token, second by second. Decides nothing, and knows no objective."""

from dataclasses import dataclass, field

from dunlin.messages.dispatch import Place
from dunlin.messages.lifecycle import MissCause


@dataclass(slots=True)
class StepTiming:
    """An answered step: when it was sent, since when the engine could compute it, and when its answer came.

    `predicted_s` is 0 without a profile.
    """

    step: int
    sent_s: float
    began_s: float
    ended_s: float
    predicted_s: float = 0.0

    @property
    def took_s(self) -> float:
        """Seconds from its beginning to its answer."""
        return self.ended_s - self.began_s


@dataclass(slots=True)
class LastTokens:
    """When the sequences of a step got their tokens: one time for all, which moves on while the step repeats."""

    at_s: float


@dataclass(slots=True)
class WaitClock:
    """Divides the time since `began_s` (the last token; before the first one the request's arrival) among causes.

    `parts` are seconds by cause up to `since_s`; from then on it waits for `cause`. `batch`: it has run
    since it got its last token with others, and both times are theirs. `least_s`: a token that comes within so long is
    no miss; 0 before its first one. `step` is the longest of its own steps since its last token,
    `step_before` the one that was answered before the first of these. `recorded`: misses that have a record, in bits.
    """

    began_s: float
    since_s: float
    cause: MissCause = MissCause.STEP_BEFORE
    parts: dict[MissCause, float] = field(default_factory=dict)
    batch: LastTokens | None = None
    step: StepTiming | None = None
    step_before: StepTiming | None = None
    least_s: float = 0.0
    recorded: int = 0

    @property
    def waits_since_s(self) -> float:
        """The time of the last token, or of the arrival."""
        return self.began_s if self.batch is None else self.batch.at_s

    def switch(self, now_s: float, cause: MissCause) -> None:
        """From now on it waits for `cause`."""
        self._leave_batch()
        self._add(self.cause, now_s - self.since_s)
        self.since_s, self.cause = now_s, cause

    def blame(self, cause: MissCause) -> None:
        """What it has waited for since `since_s` was `cause`, too: its row came to nothing."""
        self._leave_batch()
        self.cause = cause

    def on_step(self, timing: StepTiming, before: StepTiming | None) -> None:
        """A row of it was in this step. `before`: the step answered last before this one."""
        self._leave_batch()
        sent_s = max(self.since_s, timing.sent_s)
        began_s = max(sent_s, timing.began_s)
        took_s = timing.ended_s - began_s
        self._add(self.cause, sent_s - self.since_s)
        self._add(MissCause.STEP_BEFORE, began_s - sent_s)
        as_predicted_s = min(took_s, timing.predicted_s) if timing.predicted_s else took_s
        self._add(MissCause.STEP, as_predicted_s)
        self._add(MissCause.SLOW_STEP, took_s - as_predicted_s)
        self.since_s, self.cause = timing.ended_s, MissCause.LEFT_OUT
        if self.step is None:
            self.step_before = before
        if self.step is None or timing.took_s > self.step.took_s:
            self.step = timing

    def restart(self, now_s: float, is_running: bool) -> None:
        """A token of it came; it waits for the next one. `is_running`: it may have rows."""
        self.began_s = self.since_s = now_s
        self.batch = self.step = self.step_before = None
        if self.parts:
            self.parts.clear()
        if is_running:
            self.cause = MissCause.LEFT_OUT

    def _leave_batch(self) -> None:
        if self.batch is not None:
            self.restart(self.batch.at_s, True)

    def _add(self, cause: MissCause, seconds: float) -> None:
        if seconds > 0:
            self.parts[cause] = self.parts.get(cause, 0.0) + seconds


def clock_of(place: Place, arrived_s: float) -> WaitClock:
    """The clock of an attempt that came now: its client has waited elsewhere before."""
    clock = WaitClock(arrived_s - place.queued_s - place.lost_s, arrived_s)
    lost = MissCause.MIGRATION if place.handle else MissCause.EARLIER_ATTEMPT
    waits = ((MissCause.QUEUE, place.queued_s), (lost, place.lost_s))
    clock.parts |= {cause: part_s for cause, part_s in waits if part_s > 0}
    return clock
