"""The dispatcher's smaller parts: fences, admission, columns, the directory, metrics, the model's files."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address, Send
from dunlin.engine.errors import ModelError
from dunlin.messages.dispatch import Cancel
from dunlin.messages.door import Rejection
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import Finish, f32, i32
from services.dispatcher.admission import LEAST_RETRY_S, MOST_RETRY_S, Admission
from services.dispatcher.config import AdmissionConfig, DispatcherConfig
from services.dispatcher.directory import Directory
from services.dispatcher.fences import Fences
from services.dispatcher.model import load_model
from services.dispatcher.pace import PACE_KEPT
from services.dispatcher.tokens import is_whole, row_of
from tests.services.dispatcher.doors import DATA
from tests.services.dispatcher.factories import A, B, rows, submit
from tests.settings import configured

# --- fences ---


def test_a_cancel_goes_out_once_per_attempt_and_instance() -> None:
    fences = Fences()
    (effect,) = fences.cancel(A, 7, 2, "over")
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Cancel)
    assert (effect.to, effect.message.request, effect.message.attempt) == (A, 7, 2)
    assert effect.message.why is not None
    assert effect.message.why.chosen == "cancel: over"
    assert fences.cancel(A, 7, 2, "over") == fences.cancel(A, 7, 1, "over") == []
    assert len(fences.cancel(A, 7, 3, "over")) == len(fences.cancel(B, 7, 2, "over")) == 1


def test_an_answer_clears_the_attempts_it_covers() -> None:
    fences = Fences()
    fences.cancel(A, 7, 2, "over")
    fences.answered(A, 7, 1)
    fences.answered(B, 7, 2)
    fences.answered(A, 8, 2)
    assert len(fences) == 1
    fences.answered(A, 7, 2)
    assert len(fences) == 0


def test_a_lost_stream_clears_its_own() -> None:
    fences = Fences()
    fences.cancel(A, 1, 1, "x")
    fences.cancel(B, 1, 1, "x")
    fences.forget(A)
    assert len(fences) == 1
    assert len(fences.cancel(A, 1, 1, "x")) == 1
    assert fences.cancel(B, 1, 1, "x") == []


def test_fences_are_bounded_and_the_oldest_goes() -> None:
    fences = Fences(most=2)
    for number in range(3):
        fences.cancel(A, number, 1, "x")
    assert len(fences) == 2
    assert len(fences.cancel(A, 0, 1, "x")) == 1


# --- admission ---


def test_the_limit_is_the_lesser_of_model_and_fleet() -> None:
    asked = submit(range(6), max_tokens=4)
    for positions, limit, taken in ((10, None, True), (9, None, False), (0, 10, True), (0, 9, False), (10, 9, False),
                                    (9, 10, False), (0, None, True)):  # fmt: skip
        admission = Admission(AdmissionConfig(), positions)
        refusal = admission.refusal(asked, 0, limit, 0.0)
        assert (refusal is None) is taken
        if refusal is not None:
            assert refusal.code is Rejection.TOO_LONG
            assert (
                "maximum context length is 9 tokens, but the prompt has 6 and max_tokens asks for 4 more, 10"
                in refusal.detail
            )


def test_the_least_that_is_worth_running_fits() -> None:
    admission = Admission(AdmissionConfig(), 10)
    assert admission.refusal(submit(range(9), max_tokens=None), 0, None, 0.0) is None
    assert admission.refusal(submit(range(10), max_tokens=None), 0, None, 0.0) is not None
    assert admission.refusal(submit(timeout_s=0.001), 0, None, 0.0) is None


def test_the_queue_takes_exactly_so_many() -> None:
    admission = Admission(AdmissionConfig(max_queued=3))
    assert admission.refusal(submit(), 2, None, 0.0) is None
    refusal = admission.refusal(submit(), 3, None, 0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (Rejection.FULL, LEAST_RETRY_S)


def test_the_time_to_come_back_is_half_the_queue_at_the_last_pace() -> None:
    admission = Admission(AdmissionConfig())
    for second in range(40):
        admission.ended(second, 0, float(second))
    assert admission.retry_after_s(10, 40.0) == 10 / 2 * PACE_KEPT / PACE_KEPT
    assert admission.retry_after_s(1000, 40.0) == MOST_RETRY_S
    assert admission.retry_after_s(0, 40.0) == LEAST_RETRY_S


def test_a_drought_begins_once_and_ends_with_rain() -> None:
    admission = Admission(AdmissionConfig(unavailable_after_s=10.0))
    assert admission.rain(False, 1.0)
    assert not admission.rain(False, 2.0)
    assert admission.is_drought(1)
    assert not admission.is_drought(2)
    assert admission.refusal(submit(), 0, None, 10.9) is None
    refusal = admission.refusal(submit(), 0, None, 11.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (Rejection.UNAVAILABLE, 10.0)
    assert "for 10 s" in refusal.detail
    assert not admission.rain(True, 12.0)
    assert not admission.is_drought(1)
    assert admission.refusal(submit(), 0, None, 99.0) is None
    assert admission.rain(False, 20.0)
    assert admission.is_drought(2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("placement__policy", "best"), ("admission__max_queued", 0), ("placement__max_waiting_per_instance", 0),
     ("placement__max_lost_attempts", 0), ("reports__interval_s", 0.0), ("placement__refusal_pause_s", float("inf")),
     ("outage__give_up_after_s", float("nan")), ("admission__unavailable_after_s", -1.0)],
)  # fmt: skip
def test_bad_settings_are_named(name: str, value: Any) -> None:
    says = "policy is best: needs one of least_loaded" if value == "best" else name.partition("__")[2]
    with pytest.raises(ValueError, match=says):
        configured(DispatcherConfig, **{name: value})


# --- columns ---


def test_rows_come_out_with_their_own_tops() -> None:
    batch = replace(
        rows((1, 2, 3, 4), (5, 6, 7, 8), finish=Finish.STOP),
        top_count=i32([1, 2]),
        top_token=i32([40, 80, 81]),
        top_logprob=f32([-0.5, -1.0, -2.0]),
    )
    assert is_whole(batch)
    first, second = row_of(batch, 0), row_of(batch, 1)
    assert (first.request, first.attempt, first.position, first.token, first.finish) == (1, 2, 3, 4, Finish.STOP)
    assert (list(first.top_token), list(second.top_token)) == ([40], [80, 81])
    assert list(second.top_logprob) == [-1.0, -2.0]
    assert first.logprob == -0.5


@pytest.mark.parametrize("finish", [-1, len(Finish)])
def test_an_unknown_finish_spoils_the_batch(finish: int) -> None:
    assert not is_whole(replace(rows((1, 1, 1, 1)), finish=array("b", [finish])))
    assert is_whole(replace(rows((1, 1, 1, 1)), finish=array("b", [len(Finish) - 1])))


def test_counts_that_cancel_out_spoil_the_batch() -> None:
    assert not is_whole(replace(rows((1, 1, 1, 1), (2, 1, 1, 1)), top_count=i32([1, -1])))


# --- the directory ---


def test_the_newest_registered_monitor_answers() -> None:
    def monitor(incarnation: int) -> Member:
        return Member(Address("monitor", "m", incarnation), f"host:{incarnation}", "n", 1)

    directory = Directory()
    assert directory.monitor_endpoint == ""
    directory.take(MembersReset((Member(A, "host:1", "n", 1), monitor(5))))
    assert directory.monitor_endpoint == "host:5"
    directory.take(MemberUp(monitor(9)))
    directory.take(MemberUp(monitor(7)))
    assert directory.monitor_endpoint == "host:9"
    directory.take(MemberDown(monitor(9).address))
    directory.take(MemberDown(A))
    assert directory.monitor_endpoint == "host:7"
    directory.take(MembersReset(()))
    assert directory.monitor_endpoint == ""


# --- the model's files ---


def write_model(directory: Path, **config: object) -> Path:
    directory.mkdir()
    shape = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 4096, "max_position_embeddings": 77,
        "eos_token_id": [2, 3],
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**shape, **config}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((DATA / name).read_bytes())
    return directory


def test_a_model_is_known_by_its_folder_and_needs_no_weights(tmp_path: Path) -> None:
    model = load_model(str(write_model(tmp_path / "small-llama")), tmp_path)
    assert (model.name, model.max_positions, model.vocabulary) == ("small-llama", 77, 4096)
    assert model.eos_ids == (2, 3)
    assert model.render([ChatMessage("user", "Hi")]).endswith("<|assistant|>\n")
    assert load_model(str(tmp_path / "small-llama"), tmp_path, "mine").name == "mine"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    directory = write_model(tmp_path / "m")
    (directory / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        load_model(str(directory), tmp_path)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        load_model(str(tmp_path / "nothing"), tmp_path)
