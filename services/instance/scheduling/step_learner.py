"""Learns from the steps that are served what further ones will take, where there is no profile of the engine.

Decides when enough was seen, and whether what was learnt is good enough to be used. Knows no sequence and no policy.
"""

from dunlin.cost.models import BatchCounts, StepModel
from dunlin.cost.step_fit import LearntSteps, StepSums, fit_prices, model_of

LEAST_SMALL, LEAST_LARGE, LEAST_WITH_DECODES = 24, 8, 24
"""There is no fit before so many small steps, so many large ones, and so many with decode rows. A large one has half of
`budget_tokens`, a full chunk (decode rows are few), or a chunk that takes half of the objective per token at the pace
so far: on a slow engine no larger ones are composed while there is no model."""
CHUNK_TOKENS = 64
"""Prompt tokens from which on a step tells what a token takes: a smaller one takes mostly what any step does. No more
than the least chunk that a batch policy gives the oldest prompt, or steps that became slow would tell nothing any more.
"""
LEAST_PREDICTED = 24
"""Predictions before any is believed."""
LEAST_OF_KIND = 8
"""Predictions of a kind before the error of that kind counts."""
MOST_ERROR = 0.5
"""Mean relative error up to which predictions are used, of steps with prompts and of decode rows alone; a coarse
profile's is 0.1, and that of any on a machine with twice as much to do as it can about 0.3."""
ERROR_STEPS = 64
"""Predictions of a kind over which the running mean goes, about."""
DECODES_PER_SAMPLE = 8
"""Once enough steps with decode rows were summed, so many of decode rows alone follow each other before one is summed:
they are alike."""
WARM_UP_STEPS = 8
"""First steps of an engine that are not summed: caches and kernels are cold."""
MOST_BETWEEN_FITS = 256
SAVED_EVERY = 512
"""Summed steps after which what was learnt is to be saved again."""


class StepErrors:
    """Running means of the relative errors of predictions: of steps with prompts, and of decode rows alone."""

    def __init__(self, means: tuple[float, float] = (0.0, 0.0), counts: tuple[int, int] = (0, 0)) -> None:
        self._means, self._counts = list(means), list(counts)

    @property
    def means(self) -> tuple[float, float]:
        """Of steps with prompts, of decode rows alone; 0 where none was predicted."""
        return self._means[0], self._means[1]

    @property
    def counts(self) -> tuple[int, int]:
        """Predictions that the means are of."""
        return self._counts[0], self._counts[1]

    def add(self, has_prompt: bool, error: float) -> None:
        """A prediction was off by that share of what the step took."""
        kind = 0 if has_prompt else 1
        self._counts[kind] += 1
        self._means[kind] += (error - self._means[kind]) / min(self._counts[kind], ERROR_STEPS)


class StepLearner:
    """Owns the sums of steps and the model that was fitted to them last; `model` is None before the first fit.

    From the first fit on the model predicts; what it predicts is used once that has proved good (`is_trusted`).
    `token_s` are the seconds per token of the last step with `CHUNK_TOKENS`, 0 before there was one. `tpot_s` is the
    cluster's objective per token.
    """

    def __init__(self, budget_tokens: int, tpot_s: float, learnt: LearntSteps | None = None) -> None:
        known = learnt or LearntSteps(StepSums(), StepSums())
        self.model: StepModel | None = None
        self.errors = StepErrors(known.errors, known.predicted)
        self.token_s = 0.0
        self._tpot_s = tpot_s
        self._large_tokens = budget_tokens // 2
        self._small, self._large = known.small.copy(), known.large.copy()
        self._with_decodes = known.with_decodes
        self._prices: tuple[float, ...] = ()
        self._to_skip = WARM_UP_STEPS
        self._decodes_passed = 0
        self._next_fit = 0
        self._saved_at = self.taken
        self._fit_if_due()

    @property
    def taken(self) -> int:
        """Steps that were summed, here and by the processes before."""
        return self._small.steps + self._large.steps

    @property
    def is_trusted(self) -> bool:
        """Whether there is a model whose predictions were good so far."""
        if self.model is None or sum(self.errors.counts) < LEAST_PREDICTED:
            return False
        pairs = zip(self.errors.means, self.errors.counts, strict=True)
        return all(mean <= MOST_ERROR or count < LEAST_OF_KIND for mean, count in pairs)

    @property
    def has_enough(self) -> bool:
        """Whether what was seen suffices for a model: small steps and large ones, prompts and decode rows."""
        return (
            self._small.steps >= LEAST_SMALL
            and self._large.steps >= LEAST_LARGE
            and self._with_decodes >= LEAST_WITH_DECODES
        )

    def on_engine_lost(self) -> None:
        """The next engine begins cold."""
        self._to_skip = WARM_UP_STEPS

    def wants(self, batch: BatchCounts) -> bool:
        """Whether a step is to be summed: each with a prompt, and of the others a sample."""
        if batch.prefill_rows or self._with_decodes < LEAST_WITH_DECODES:
            return True
        self._decodes_passed += 1
        return self._decodes_passed % DECODES_PER_SAMPLE == 0

    def add(self, batch: BatchCounts, seconds: float) -> None:
        """A step took so many seconds; fit anew if it is time."""
        sums = self._large if self._is_large(batch) else self._small
        if batch.prefill_tokens >= CHUNK_TOKENS:
            self.token_s = seconds / (batch.prefill_tokens + batch.decode_rows)
        if self._to_skip:
            self._to_skip -= 1
            return
        sums.add(batch, seconds)
        self._with_decodes += batch.decode_rows > 0
        self._fit_if_due()

    def to_save(self) -> LearntSteps | None:
        """What was learnt, if it has become worth saving; None: not since the last time."""
        if not self.is_trusted or (self._saved_at and self.taken < self._saved_at + SAVED_EVERY):
            return None
        self._saved_at = self.taken
        sums = self._small.copy(), self._large.copy()
        return LearntSteps(*sums, self._with_decodes, self.errors.means, self.errors.counts)

    def _is_large(self, batch: BatchCounts) -> bool:
        """By the pace of the step before: by its own, a step that was held up would be larger than others like it."""
        if batch.prefill_tokens + batch.decode_rows >= self._large_tokens:
            return True
        return batch.prefill_tokens >= CHUNK_TOKENS and 2 * batch.prefill_tokens * self.token_s >= self._tpot_s

    def _fit_if_due(self) -> None:
        """At growing intervals, because a fit costs as much as a hundred sums."""
        taken = self.taken
        if taken < self._next_fit or not self.has_enough:
            return
        self._next_fit = taken + min(MOST_BETWEEN_FITS, max(LEAST_PREDICTED, taken // 4))
        self._prices = fit_prices((self._small, self._large), self._prices)
        self.model = model_of(self._prices)
