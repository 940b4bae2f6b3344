"""Constrained rows of an engine: what they say matches, alone, in a batch, and after they were opened anew."""

import json
from typing import Any

import pytest

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.messages.engine import Close
from dunlin.messages.types import FinishReason, Grammar, GrammarKind, SamplingParams
from dunlin.structured_output.compiler import GrammarCompiler
from dunlin.text.tokenizer import load_tokenizer
from tests.engine.build import SteppingClock, load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.running import run
from tests.text.builtin import BUILTIN

TOKENIZER = load_tokenizer(BUILTIN)
VOCABULARY = TOKENIZER.vocab_size + 5
END = 1
SCHEMA = {
    "type": "object",
    "properties": {
        "bird": {"enum": ["heron", "dunlin"]},
        "seen": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    },
    "required": ["bird", "seen"],
    "additionalProperties": False,
}
JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
MOST = 120


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), vocab=VOCABULARY), deterministic=True)


@pytest.fixture
def runner(loaded: LoadedModel) -> EngineRunner:
    grammars = GrammarCompiler(BUILTIN, VOCABULARY, (END,))
    return EngineRunner(loaded.decoder, loaded.slots, SteppingClock(), RunnerLimits(), grammars=grammars)


def sampling(seed: int, grammar: Grammar | None = JSON, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=1.5, seed=seed, grammar=grammar, **changes)


PROMPT = [9, 8, 7]


def generated(runner: EngineRunner, first_step: int, seeds: list[int], known: list[list[int]]) -> dict[int, list[int]]:
    """The tokens of one sequence for each seed, all in the same steps; `known` are those that each has already."""
    texts = {number: [*PROMPT, *known[number]] for number in range(len(seeds))}
    for number, seed in enumerate(seeds):
        opened = make_open(
            number, texts[number], prompt_tokens=3, max_tokens=MOST, stop_ids=(END,), sampling=sampling(seed)
        )
        assert run(runner, opened) == []
    start, step, running = dict.fromkeys(texts, 0), first_step, set(texts)
    while running:
        rows = [(number, start[number], len(texts[number]), number * 200 + start[number]) for number in sorted(running)]
        (done,) = run(runner, make_step(step, *rows))
        for number, token, finish in zip(done.sequence, done.token, done.finish, strict=True):
            start[number] = len(texts[number])
            texts[number].append(token)
            if finish:
                assert finish == FinishReason.STOP
                running.discard(number)
        step += 1
    run(runner, *(Close(number) for number in texts))
    return {number: text[3:] for number, text in texts.items()}


def test_constrained_rows_match_alone_in_a_batch_and_opened_anew(runner: EngineRunner) -> None:
    seeds = [1, 2, 3, 4]
    together = generated(runner, 0, seeds, [[]] * 4)
    for number, tokens in together.items():
        assert tokens[-1] == END
        bird = json.loads(TOKENIZER.decode(tokens[:-1]))
        assert set(bird) == {"bird", "seen"}
        assert bird["bird"] in ("heron", "dunlin")
        alone = generated(runner, 1000 * (number + 1), [seeds[number]], [[]])
        assert alone[0] == tokens
    halves = [tokens[: len(tokens) // 2] for tokens in together.values()]
    assert generated(runner, 9000, seeds, halves) == together
    assert len({tuple(tokens) for tokens in together.values()}) > 1


@pytest.mark.parametrize("grammar", [Grammar(GrammarKind.REGEX, "a("), JSON])
def test_a_text_without_a_next_token_fails_and_its_neighbour_goes_on(
    runner: EngineRunner, loaded: LoadedModel, grammar: Grammar
) -> None:
    if grammar is JSON:  # an engine that was made without grammars
        runner = EngineRunner(loaded.decoder, loaded.slots, SteppingClock(), RunnerLimits())
    bad = make_open(1, PROMPT, stop_ids=(END,), sampling=sampling(1, grammar))
    good = make_open(2, PROMPT, stop_ids=(END,), sampling=sampling(1, None))
    assert run(runner, bad, good) == []
    (done,) = run(runner, make_step(1, (1, 0, 3, 0), (2, 0, 3, 50)))
    assert (list(done.failed), list(done.sequence)) == ([1], [2])


def test_no_stop_token_is_chosen_before_the_least() -> None:
    least = SamplingParams(temperature=0.0, min_tokens=2)
    state = EngineSequence(make_open(tokens=[1, 2], max_tokens=9, stop_ids=(6,), sampling=least), 100, 2)
    excluded = []
    for token in (7, 7, 7):
        excluded.append(set(state.next_draw().excluded))
        state.append(token)
    assert excluded == [{6}, {6}, set()]
    recovered = make_open(tokens=[1, 2, 7, 7], prompt_tokens=2, max_tokens=9, stop_ids=(6,), sampling=least)
    assert not EngineSequence(recovered, 100, 2).next_draw().excluded


def test_a_complete_text_ends_however_short(runner: EngineRunner) -> None:
    asked = sampling(1, Grammar(GrammarKind.LARK, 'start: "a"'), min_tokens=5)
    run(runner, make_open(1, PROMPT, stop_ids=(END,), sampling=asked))
    said = [run(runner, make_step(1, (1, 0, 3, 0)))[0], run(runner, make_step(2, (1, 3, 4, 3)))[0]]
    assert [TOKENIZER.decode([done.token[0]]) for done in said] == ["a", ""]
    assert [done.finish[0] for done in said] == [FinishReason.RUNNING, FinishReason.STOP]
