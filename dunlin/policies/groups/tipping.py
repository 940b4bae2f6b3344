"""From how many tokens on a step takes longer for arithmetic than for reading the weights. Pure."""

from dunlin.cost.models import BatchCounts, StepTimes

_MOST_TOKENS = 1 << 20


def tipping_tokens(timing: StepTimes) -> int:
    """The tokens of a step that takes twice as long as one of a single token, to the next power of two: half of it is
    arithmetic. Attention is counted, so long contexts tip earlier.
    """
    one = BatchCounts()
    one.add_prefill(1)
    least_s, tokens = timing.step_s(one), 1
    while tokens < _MOST_TOKENS:
        batch = BatchCounts()
        batch.add_prefill(2 * tokens)
        if timing.step_s(batch) > 2.0 * least_s:
            break
        tokens *= 2
    return tokens
