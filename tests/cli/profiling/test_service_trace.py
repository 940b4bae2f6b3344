"""Steps in an order as in service: every text whole and in order, few rows and many, prompts among decodes, pauses."""

from cli.profiling.service_trace import TOKENS_MAX, TracedSequence, TracedStep, service_steps

POSITIONS = 2048


def made(count: int = 3000, seed: int = 0) -> list[TracedStep]:
    return list(service_steps(count, POSITIONS, seed=seed))


def test_the_same_seed_gives_the_same_steps() -> None:
    assert made(200) == made(200)
    assert made(200) != made(200, seed=1)


def test_every_text_is_computed_in_order_without_a_gap() -> None:
    held: dict[TracedSequence, int] = {}
    for beat in made():
        assert beat.rows
        assert len({part.sequence for part in beat.rows}) == len(beat.rows)
        for part in beat.rows:
            assert part.start == held.get(part.sequence, 0) < part.stop <= part.sequence.prompt + part.sequence.answer
            assert part.is_decode == (part.start >= part.sequence.prompt)
            assert not part.is_decode or part.stop == part.start + 1
            held[part.sequence] = part.stop
    assert all(text.prompt + text.answer < POSITIONS for text in held)


def test_no_step_is_longer_than_an_instance_makes_them() -> None:
    assert max(sum(part.stop - part.start for part in beat.rows) for beat in made()) <= TOKENS_MAX


def test_a_pause_is_where_nothing_was_left_to_do() -> None:
    before: TracedStep | None = None
    pauses = 0
    for beat in made():
        if beat.pause_s:
            pauses += 1
            assert before is None or all(part.is_last for part in before.rows)
            assert all(part.start == 0 for part in beat.rows)
        before = beat
    assert pauses > 3


def test_few_rows_and_many_with_prompts_and_without() -> None:
    batches = [beat.batch() for beat in made()]
    for low, high in ((1, 2), (2, 8), (8, 32), (32, 97)):
        chosen = [batch for batch in batches if low <= batch.decode_rows < high]
        assert sum(batch.prefill_tokens == 0 for batch in chosen) > 10
        assert sum(batch.prefill_tokens > 0 for batch in chosen) > 10
