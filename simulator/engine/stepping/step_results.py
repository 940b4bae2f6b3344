"""What an iteration of a modelled engine yields, and its answer."""

from dataclasses import dataclass, field

from dunlin.messages.engine import StepDone
from dunlin.messages.types import FinishReason, PromptScores, f32, i8, i32, i64


@dataclass(slots=True)
class IterationResult:
    """The results of one iteration.

    The lists have an entry per row that sampled, except `dropped` (sequences whose rows did not run), `failed`
    (sequences without a next token, because their logits are not finite) and `left` (sequences whose rows left at an
    `Interrupt`). `computed` counts tokens. `cut_short` and `scores`: as in `StepDone`.
    """

    step: int
    left: list[int]
    dropped: list[int]
    numbers: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    tops: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    prefill_rows: int = 0
    decode_rows: int = 0
    computed: int = 0
    cut_short: bool = False
    scores: PromptScores | None = None


def step_done(tally: IterationResult, vocabulary: int, compute_s: float, idle_s: float) -> StepDone:
    """The answer to one iteration; `compute_s` seconds in it, `idle_s` seconds before it."""
    top_token, top_logprob = i32(), f32()
    for token, tops in zip(tally.tokens, tally.tops, strict=True) if any(tally.tops) else ():
        top_token.extend((token + other) % vocabulary for other in range(tops))
        top_logprob.extend(-float(other) for other in range(tops))
    return StepDone(
        tally.step,
        i64(tally.numbers),
        i32(tally.tokens),
        f32([-(token % 8) / 8 for token in tally.tokens]),
        i8(tally.finishes),
        i64(tally.dropped),
        i32(tally.tops) if top_token else i32(),
        top_token,
        top_logprob,
        tally.prefill_rows,
        tally.decode_rows,
        tally.computed,
        compute_s,
        idle_s,
        i64(tally.failed),
        i64(tally.left),
        tally.cut_short,
        tally.scores,
    )
