"""Log-probabilities of prompt tokens: those of `transformers`, however the prompt is cut, interrupted, or reopened."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution import prompt_scores
from dunlin.engine.execution.prompt_scores import PromptScorer
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Close, Interrupted, StepDone, Unsupported
from dunlin.messages.types import PromptScores, SamplingParams, Verdict, i64
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import answers, drain, interrupt, poisoned_runner, resume, run_to
from tests.engine.execution.running import make_runner, run

transformers = pytest.importorskip("transformers")

PROMPT = [(7 * at * at + 3 * at + 11) % 500 for at in range(41)]
N = len(PROMPT)
BEST = 3
CLOSE = 1e-4
WANTED = SamplingParams(temperature=0.0, prompt_logprobs=BEST)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module", params=[False, True], ids=["fast", "deterministic"])
def loaded(directory: Path, request: pytest.FixtureRequest) -> LoadedModel:
    return load(directory, deterministic=request.param)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> torch.Tensor:
    """`[N, vocab]`: what `transformers` thinks comes after each token of PROMPT."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([PROMPT])).logits[0]
    return logits.log_softmax(dim=-1)


@dataclass
class Scored:
    """What the answers said of one sequence's prompt, by token."""

    logprobs: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    tops: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, scores: PromptScores, sequence: int = 1) -> None:
        at = top = 0
        columns = zip(scores.sequence, scores.start, scores.count, scores.best, strict=True)
        for named, start, count, best in columns:
            for token in range(start, start + count):
                pairs = list(zip(scores.top_token[top : top + best], scores.top_logprob[top : top + best], strict=True))
                if named == sequence:
                    assert token not in self.logprobs, "scored twice"
                    self.logprobs[token], self.ranks[token] = scores.logprob[at], scores.rank[at]
                    self.tops[token] = pairs
                at, top = at + 1, top + best
        assert (at, top) == (len(scores.logprob), len(scores.top_token))


def scored(events: list[Any], sequence: int = 1) -> Scored:
    found = Scored()
    for done in answers(events, StepDone):
        if done.scores is not None:
            found.add(done.scores, sequence)
    return found


def assert_is_oracles(found: Scored, oracle: torch.Tensor) -> None:
    assert sorted(found.logprobs) == list(range(1, N))
    for token in range(1, N):
        row = oracle[token - 1]
        assert found.logprobs[token] == pytest.approx(float(row[PROMPT[token]]), abs=CLOSE)
        assert found.ranks[token] == int((row > row[PROMPT[token]]).sum()) + 1
        best = row.topk(BEST)
        assert [each for each, _ in found.tops[token]] == best.indices.tolist()
        assert [value for _, value in found.tops[token]] == pytest.approx(best.values.tolist(), abs=CLOSE)


def chunks(runner: EngineRunner, *cuts: int) -> list[Any]:
    """The prompt in chunks that end at the cuts; the last one samples."""
    spans = list(zip((0, *cuts), (*cuts, N), strict=True))
    steps = [make_step(i, (1, a, b, a), sample=[b == N]) for i, (a, b) in enumerate(spans)]
    return run(runner, make_open(1, PROMPT, sampling=WANTED), *steps)


@pytest.mark.parametrize("cuts", [(), (1,), (40,), (7, 8, 33)])
@pytest.mark.parametrize("at_once", [1, 5, 1 << 20])
def test_they_are_the_oracles_however_the_prompt_is_cut(
    loaded: LoadedModel, oracle: torch.Tensor, cuts: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MOST_LOGITS", at_once * loaded.decoder.config.vocab)
    events = chunks(make_runner(loaded), *cuts)
    assert_is_oracles(scored(events), oracle)
    assert [len(done.token) for done in answers(events, StepDone)] == [0] * len(cuts) + [1]


def test_logits_of_a_long_prompt_are_never_there_at_once(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scores, "MOST_LOGITS", 4 * loaded.decoder.config.vocab)
    asked, compute = list[int](), type(loaded.decoder).logits

    def watched(decoder: Any, hidden: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden))
        return compute(decoder, hidden)

    monkeypatch.setattr(type(loaded.decoder), "logits", watched)
    chunks(make_runner(loaded))
    assert max(asked) <= 4
    assert sum(asked) == N - 1 + 1


def test_pieces_take_about_as_long_as_a_response_may() -> None:
    scorer = PromptScorer(lambda hidden: hidden, prompt_scores.MOST_LOGITS // 64, lambda: 0.0, 0.01)
    learnt = []
    for seconds in (0.001, 0.002, 0.005, 0.02, 0.011, 0.001, 0.0, 0.0, 0.0):
        scorer.learn(scorer.positions, seconds)
        learnt.append(scorer.positions)
    assert learnt == [16, 32, 32, 16, 8, 16, 32, 64, 64]
    scorer.learn(1, 0.0)
    assert scorer.positions == 64, "the last positions of a prompt are few, and say little"
    for _ in range(9):
        scorer.learn(scorer.positions, 1.0)
    assert scorer.positions == 1


def test_rows_that_want_none_have_none(loaded: LoadedModel, oracle: torch.Tensor) -> None:
    """Beside each other in one step: with, without, and a row that decodes."""
    runner = make_runner(loaded)
    run(runner, make_open(3, PROMPT[:9]), make_step(1, (3, 0, 9, 200)))
    opens = make_open(1, PROMPT, sampling=WANTED), make_open(2, PROMPT)
    events = run(runner, *opens, make_step(2, (2, 0, N, 50), (3, 9, 10, 209), (1, 0, N, 100)))
    (done,) = answers(events, StepDone)
    assert list(done.scores.sequence) == [1]
    assert list(done.sequence) == [2, 3, 1]
    assert done.token[0] == done.token[2]
    assert_is_oracles(scored(events), oracle)
    assert run(runner, make_step(3, (1, N, N + 1, 100 + N)))[0].scores is None


def test_the_chosen_tokens_alone(loaded: LoadedModel, oracle: torch.Tensor) -> None:
    asked = make_open(1, PROMPT, sampling=SamplingParams(temperature=0.0, prompt_logprobs=0))
    (done,) = run(make_runner(loaded), asked, make_step(1, (1, 0, N, 0)))
    assert (list(done.scores.best), list(done.scores.top_token)) == ([0], [])
    assert done.scores.logprob[0] == pytest.approx(float(oracle[0][PROMPT[1]]), abs=CLOSE)


def test_a_reopened_sequence_is_scored_from_where_it_was(loaded: LoadedModel, oracle: torch.Tensor) -> None:
    """After a crash of its engine: the KV of the first tokens is there, and their scores went out."""
    runner = make_runner(loaded)
    first = run(runner, make_open(1, PROMPT, sampling=WANTED), make_step(1, (1, 0, 17, 0), sample=[0]))
    run(runner, Close(1))
    held = {"extent_start": i64([0]), "extent_length": i64([17])}
    opened = make_open(1, PROMPT, sampling=WANTED, scored=17, **held)
    assert_is_oracles(scored(first + run(runner, opened, make_step(2, (1, 17, N, 17)))), oracle)
    run(runner, Close(1))
    # Computed anew where the KV was not trusted: what is known is not scored again.
    again = run(runner, make_open(1, PROMPT, sampling=WANTED, scored=17), make_step(3, (1, 0, N, 0)))
    assert sorted(scored(again).logprobs) == list(range(18, N))


def test_a_generated_part_is_no_prompt(loaded: LoadedModel) -> None:
    """After a failover the tokens of earlier attempts stand behind the prompt."""
    runner = make_runner(loaded)
    opened = make_open(1, PROMPT, sampling=WANTED, prompt_tokens=30)
    found = scored(run(runner, opened, make_step(1, (1, 0, N, 0))))
    assert sorted(found.logprobs) == list(range(1, 30))


def test_a_prompt_of_one_token_has_none(loaded: LoadedModel) -> None:
    opened = make_open(1, PROMPT[:1], sampling=WANTED)
    (done,) = run(make_runner(loaded), opened, make_step(1, (1, 0, 1, 0)))
    assert done.scores is None
    assert len(done.token) == 1


def test_a_step_that_would_leave_some_out_is_refused(loaded: LoadedModel) -> None:
    """KV of another sequence with the same beginning has no logits."""
    runner = make_runner(loaded)
    run(runner, make_open(2, PROMPT), make_step(1, (2, 0, N, 0)))
    held = {"extent_start": i64([0]), "extent_length": i64([16])}
    (refused,) = run(runner, make_open(1, PROMPT, sampling=WANTED, **held), make_step(2, (1, 16, N, 16)))
    assert isinstance(refused, Unsupported)
    assert (refused.step, "log-probabilities" in refused.detail) == (2, True)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_rows_leave_at_any_safepoint_and_are_scored_in_the_end(
    loaded: LoadedModel, oracle: torch.Tensor, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "MOST_LOGITS", 8 * loaded.decoder.config.vocab)
    opens = make_open(1, PROMPT, sampling=WANTED), make_open(2, PROMPT[:20], sampling=WANTED)
    step = make_step(1, (1, 0, N, 0), (2, 0, 20, 100))
    at, left_in = 1, set[int]()
    while True:
        runner = poisoned_runner(loaded)
        events = run_to(runner, at, *opens, step)
        if not runner.steps.is_running:
            break
        events += runner.receive(interrupt(1, verdict=verdict, up_to_step=1)) + drain(runner)
        (gone,) = answers(events, Interrupted)
        left_in.add(gone.layer[0])
        assert list(gone.parked) == [verdict is Verdict.SUSPEND]
        again = resume(2, 1) if verdict is Verdict.SUSPEND else make_step(2, (1, 0, N, 0))
        events += run(runner, again)
        assert_is_oracles(scored(events), oracle)
        assert sorted(scored(events, 2).logprobs) == list(range(1, 20))
        at += 5
    assert max(left_in) == len(loaded.decoder.kv), "none left while prompts were scored"


def test_logits_that_are_no_numbers_end_the_sequence(directory: Path) -> None:
    loaded = load(directory)
    runner = poisoned_runner(loaded)  # its slots hold no numbers, and an extent says that they do
    held = {"extent_start": i64([0]), "extent_length": i64([8])}
    opened = make_open(1, PROMPT, sampling=WANTED, scored=8, **held)
    other = make_open(2, PROMPT, sampling=WANTED)
    (done,) = run(runner, opened, other, make_step(1, (1, 8, N, 8), (2, 0, N, 100)))
    assert (list(done.failed), list(done.sequence), list(done.scores.sequence)) == ([1], [2], [2])
    (after,) = run(runner, make_step(2, (1, N, N + 1, N), (2, N, N + 1, 100 + N)))
    assert list(after.dropped) == [1]
