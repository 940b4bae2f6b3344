"""Composes the next step of the sequences that may have a row, and enters it in the ledger.

Knows which sequences run and which slots they have; not how they were admitted or what follows when they end.
"""

from dunlin.messages.engine import Step
from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why, i8, i64
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from services.instance.config import SchedulerConfig
from services.instance.kv.kv_cache import KvCache
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.objectives.miss_allowance import MissAllowance
from services.instance.scheduling.decode_fast_path import DecodeFastPath, NextSlot, SlotExtents, empty_extents
from services.instance.scheduling.step_forecast import step_counts
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_rows import StepRows
from services.instance.scheduling.step_times import NEEDS_STEP_TIMES
from services.instance.sequence.sequence import Sequence

_DECODE = {
    (request_class, may_preempt, is_risen): BatchCandidate(1, True, request_class, may_preempt, is_risen)
    for request_class in RequestClass
    for may_preempt in (False, True)
    for is_risen in (False, True)
}
"""The candidates of decode rows, made once."""
_WITHIN = RejectedOption("a step within tpot_objective_s", "first tokens would be late")


class BatchComposer:
    """Owns the last step's composition, as long as the next one can follow from it.

    `preempts_steps`: steps of batch work alone are preemptible throughout, for interactive requests that arrive.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        ledger: StepLedger,
        objectives: EffectiveObjectives,
        allowance: MissAllowance,
        preempts_steps: bool = False,
    ) -> None:
        self._policy = BATCH_POLICIES[config.policy]
        self._policy_name = config.policy
        self._budget = StepBudget(config.budget_tokens, most_tokens=config.max_step_tokens)
        self._ledger = ledger
        self._objectives = objectives
        self._allowance = allowance
        self._preempts_steps = preempts_steps
        self._layout = 0
        self._composition = i64()
        self._fast_path = DecodeFastPath()

    def clear(self) -> None:
        """The engine is gone: forget the last step."""
        self._composition = i64()
        self._fast_path.clear()

    def on_layers_changed(self, layout: int) -> None:
        """Steps that are composed from now on are for this layout of the engine."""
        self._layout = layout
        self.clear()

    def choose_rows(self, running: list[Sequence], kv_cache: KvCache, now_s: float) -> list[tuple[Sequence, int]]:
        """Which sequences may have how many tokens in the next step; empty if none may."""
        forecast = self._ledger.forecast
        starts_s = now_s + forecast.remaining_s(now_s)
        able: list[Sequence] = []
        candidates: list[BatchCandidate] = []
        for sequence in running:  # `remaining` and `has_sampled`, written out: this is a good part of a token's cost
            place, length = sequence.place, len(sequence.tokens) + sequence.pending
            if length < place.prompt_tokens + place.max_tokens:
                remaining = length - sequence.issued
                able.append(sequence)
                importance = place.request_class, place.may_preempt, sequence.is_risen
                is_decode = remaining == 1 and length > len(place.tokens)
                if is_decode:
                    candidates.append(_DECODE[importance])
                else:
                    due_in_s = self._objectives.due_s(sequence) - starts_s
                    candidates.append(BatchCandidate(remaining, False, *importance, due_in_s))
        if not able:
            return []
        self._budget.contexts = [sequence.issued for sequence in able]
        self._budget.times, self._budget.token_s = forecast.times, forecast.token_s
        self._budget.late_tokens = self._allowance.tokens
        self._budget.slots = kv_cache.slot_table.capacity
        self._budget.taken_slots = self._budget.slots - kv_cache.available_slots
        self._objectives.set_budget(self._budget, running, zip(able, candidates, strict=True))
        taken = self._policy(candidates, self._budget)
        return [(sequence, tokens) for sequence, tokens in zip(able, taken, strict=True) if tokens > 0]

    def repeat(self, running: list[Sequence], slot_of: NextSlot) -> Step | None:
        """The next step where it has the rows of the one before, each a token further; None: it must be composed."""
        found = self._fast_path.next_rows(running, slot_of)
        return None if found is None else self._add(*found)

    def compose(
        self,
        running: list[Sequence],
        chosen: list[tuple[Sequence, int]],
        kv_cache: KvCache,
    ) -> Step:
        """The next step of rows `chosen` of `running`, whose slots are there already; it is outstanding from now on."""
        starts, extents = i64([sequence.issued for sequence, _ in chosen]), empty_extents()
        stops = i64([sequence.issued + tokens for sequence, tokens in chosen])
        rows = StepRows(
            [sequence for sequence, _ in chosen], i64([sequence.number for sequence, _ in chosen]), starts, stops, i8()
        )
        for index, sequence in enumerate(rows.sequences):
            stop = stops[index]
            first, last, slot = sequence.slot_run
            if first <= sequence.issued and stop <= last:  # as `kv_cache.extents` would find, for nearly every row
                extents.add(index, slot + sequence.issued - first, stop - sequence.issued)
            else:
                for at, length in kv_cache.extents(sequence, sequence.issued, stop):
                    extents.add(index, at, length)
            samples = stop == len(sequence.tokens) + sequence.pending
            sequence.issued = stop
            sequence.pending += samples
            sequence.in_steps += 1
            rows.samples.append(samples)
        self._fast_path.record(running, rows, extents)
        return self._add(rows, extents, self._why(rows))

    def _add(self, rows: StepRows, extents: SlotExtents, why: Why | None = None) -> Step:
        return Step(
            self._ledger.add(rows),
            rows.numbers,
            rows.starts,
            rows.stops,
            rows.samples,
            extents.row,
            extents.start,
            extents.length,
            why=why,
            layout=self._layout,
            preemptible=self._preempts_steps and all(sequence.is_batch for sequence in rows.sequences),
        )

    def _why(self, rows: StepRows) -> Why | None:
        """The reason, if the composition differs from the last step's."""
        if rows.numbers == self._composition:
            return None
        before, self._composition = len(self._composition), rows.numbers
        tokens = decodes = 0
        for start, stop, samples in zip(rows.starts, rows.stops, rows.samples, strict=True):
            tokens += stop - start
            decodes += samples and stop - start == 1
        figures = (
            Figure("rows", len(rows.starts)),
            Figure("decode_rows", decodes),
            Figure("tokens", tokens),
            self._bound(rows),
            Figure("rows_before", before),
        )
        rejected = (_WITHIN,) if self._is_late_for_prompts(rows) else ()
        return Why(self._policy_name, f"{len(rows.starts)} rows, {tokens} tokens", figures, rejected)

    def _is_late_for_prompts(self, rows: StepRows) -> bool:
        """Whether it is to take longer than the objective of the interactive rows that decode in it, for prompts."""
        times = self._budget.times
        if times is None or self._policy_name not in NEEDS_STEP_TIMES or len(_interactive_kinds(rows)) < 2:
            return False
        return times.step_s(step_counts(rows.starts, rows.stops, rows.samples)) > self._budget.tpot_s

    def _bound(self, rows: StepRows) -> Figure:
        """What a step of these rows was filled up to: tokens, or the objective that its predicted time was to keep."""
        if self._budget.times is None or self._policy_name not in NEEDS_STEP_TIMES:
            return Figure("budget_tokens", self._budget.tokens)
        kinds = _interactive_kinds(rows)
        if not kinds:
            return Figure("budget_tokens", self._budget.most_tokens)
        if True in kinds:
            return Figure("tpot_objective_s", self._budget.tpot_s)
        return Figure("ttft_objective_s", self._budget.ttft_s)


def _interactive_kinds(rows: StepRows) -> set[bool]:
    """Which interactive rows there are: True, some that decode; False, some of prompts."""
    found = zip(rows.sequences, rows.starts, rows.stops, rows.samples, strict=True)
    return {bool(samples) and stop - start == 1 for sequence, start, stop, samples in found if not sequence.is_batch}
