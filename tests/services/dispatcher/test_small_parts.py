"""The dispatcher's smaller parts: fences, admission, columns, the directory, metrics, the model's files."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Cancel
from dunlin.messages.door import RejectionCode
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import FinishReason, f32, i32
from dunlin.model.errors import ModelError
from services.dispatcher.admission.controller import MAX_RETRY_S, MIN_RETRY_S, AdmissionController
from services.dispatcher.admission.wait_estimate import SAMPLES_KEPT
from services.dispatcher.config import AdmissionConfig, DispatcherConfig
from services.dispatcher.doors.generation.served_model import load_served_model
from services.dispatcher.placement.monitor_directory import MonitorDirectory
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.token_rows import is_consistent, token_row
from tests.services.dispatcher.factories import A, B, rows, submit
from tests.services.dispatcher.running_doors import DATA
from tests.settings import configured

# --- fences ---


def test_a_cancel_goes_out_once_per_attempt_and_instance() -> None:
    fences = AttemptFences()
    (effect,) = fences.cancel(A, 7, 2, "over")
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Cancel)
    assert (effect.to, effect.message.request, effect.message.attempt) == (A, 7, 2)
    assert effect.message.why is not None
    assert effect.message.why.chosen == "cancel: over"
    assert fences.cancel(A, 7, 2, "over") == fences.cancel(A, 7, 1, "over") == []
    assert len(fences.cancel(A, 7, 3, "over")) == len(fences.cancel(B, 7, 2, "over")) == 1


def test_an_answer_clears_the_attempts_it_covers() -> None:
    fences = AttemptFences()
    fences.cancel(A, 7, 2, "over")
    fences.on_ended(A, 7, 1)
    fences.on_ended(B, 7, 2)
    fences.on_ended(A, 8, 2)
    assert len(fences) == 1
    fences.on_ended(A, 7, 2)
    assert len(fences) == 0


def test_a_lost_stream_clears_its_own() -> None:
    fences = AttemptFences()
    fences.cancel(A, 1, 1, "x")
    fences.cancel(B, 1, 1, "x")
    fences.forget_instance(A)
    assert len(fences) == 1
    assert len(fences.cancel(A, 1, 1, "x")) == 1
    assert fences.cancel(B, 1, 1, "x") == []


def test_fences_are_bounded_and_the_oldest_goes() -> None:
    fences = AttemptFences(most=2)
    for number in range(3):
        fences.cancel(A, number, 1, "x")
    assert len(fences) == 2
    assert len(fences.cancel(A, 0, 1, "x")) == 1


# --- admission ---


def test_the_limit_is_the_lesser_of_model_and_fleet() -> None:
    asked = submit(range(6), max_tokens=4)
    for positions, limit, taken in ((10, None, True), (9, None, False), (0, 10, True), (0, 9, False), (10, 9, False),
                                    (9, 10, False), (0, None, True)):  # fmt: skip
        admission = AdmissionController(AdmissionConfig(), positions)
        refusal = admission.refusal(asked, 0, limit, 0.0)
        assert (refusal is None) is taken
        if refusal is not None:
            assert refusal.code is RejectionCode.TOO_LONG
            assert (
                "maximum context length is 9 tokens, but the prompt has 6 and max_tokens asks for 4 more, 10"
                in refusal.detail
            )


def test_the_least_that_is_worth_running_fits() -> None:
    admission = AdmissionController(AdmissionConfig(), 10)
    assert admission.refusal(submit(range(9), max_tokens=None), 0, None, 0.0) is None
    assert admission.refusal(submit(range(10), max_tokens=None), 0, None, 0.0) is not None
    assert admission.refusal(submit(timeout_s=0.001), 0, None, 0.0) is None


def test_the_queue_takes_exactly_so_many() -> None:
    admission = AdmissionController(AdmissionConfig(max_queued=3))
    assert admission.refusal(submit(), 2, None, 0.0) is None
    refusal = admission.refusal(submit(), 3, None, 0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RejectionCode.FULL, MIN_RETRY_S)


def test_the_time_to_come_back_is_half_the_queue_at_the_last_pace() -> None:
    admission = AdmissionController(AdmissionConfig())
    for second in range(40):
        admission.on_ended(second, 0, float(second))
    assert admission.retry_after_s(10, 40.0) == 10 / 2 * SAMPLES_KEPT / SAMPLES_KEPT
    assert admission.retry_after_s(1000, 40.0) == MAX_RETRY_S
    assert admission.retry_after_s(0, 40.0) == MIN_RETRY_S


def test_a_drought_begins_once_and_ends_with_rain() -> None:
    admission = AdmissionController(AdmissionConfig(unavailable_after_s=10.0))
    assert admission.update_outage(False, 1.0)
    assert not admission.update_outage(False, 2.0)
    assert admission.is_outage(1)
    assert not admission.is_outage(2)
    assert admission.refusal(submit(), 0, None, 10.9) is None
    refusal = admission.refusal(submit(), 0, None, 11.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RejectionCode.UNAVAILABLE, 10.0)
    assert "for 10 s" in refusal.detail
    assert not admission.update_outage(True, 12.0)
    assert not admission.is_outage(1)
    assert admission.refusal(submit(), 0, None, 99.0) is None
    assert admission.update_outage(False, 20.0)
    assert admission.is_outage(2)


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
        rows((1, 2, 3, 4), (5, 6, 7, 8), finish=FinishReason.STOP),
        top_count=i32([1, 2]),
        top_token=i32([40, 80, 81]),
        top_logprob=f32([-0.5, -1.0, -2.0]),
    )
    assert is_consistent(batch)
    first, second = token_row(batch, 0), token_row(batch, 1)
    assert (first.request, first.attempt, first.position, first.token, first.finish) == (1, 2, 3, 4, FinishReason.STOP)
    assert (list(first.top_token), list(second.top_token)) == ([40], [80, 81])
    assert list(second.top_logprob) == [-1.0, -2.0]
    assert first.logprob == -0.5


@pytest.mark.parametrize("finish", [-1, len(FinishReason)])
def test_an_unknown_finish_spoils_the_batch(finish: int) -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1)), finish=array("b", [finish])))
    assert is_consistent(replace(rows((1, 1, 1, 1)), finish=array("b", [len(FinishReason) - 1])))


def test_counts_that_cancel_out_spoil_the_batch() -> None:
    assert not is_consistent(replace(rows((1, 1, 1, 1), (2, 1, 1, 1)), top_count=i32([1, -1])))


# --- the directory ---


def test_the_newest_registered_monitor_answers() -> None:
    def monitor(incarnation: int) -> Member:
        return Member(Address("monitor", "m", incarnation), f"host:{incarnation}", "n", 1)

    directory = MonitorDirectory()
    assert directory.monitor_endpoint == ""
    directory.apply(MembersReset((Member(A, "host:1", "n", 1), monitor(5))))
    assert directory.monitor_endpoint == "host:5"
    directory.apply(MemberUp(monitor(9)))
    directory.apply(MemberUp(monitor(7)))
    assert directory.monitor_endpoint == "host:9"
    directory.apply(MemberDown(monitor(9).address))
    directory.apply(MemberDown(A))
    assert directory.monitor_endpoint == "host:7"
    directory.apply(MembersReset(()))
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
    model = load_served_model(str(write_model(tmp_path / "small-llama")), tmp_path)
    assert (model.name, model.max_positions, model.vocabulary) == ("small-llama", 77, 4096)
    assert model.eos_ids == (2, 3)
    assert model.render([ChatMessage("user", "Hi")]).endswith("<|assistant|>\n")
    assert load_served_model(str(tmp_path / "small-llama"), tmp_path, "mine").name == "mine"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    directory = write_model(tmp_path / "m")
    (directory / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        load_served_model(str(directory), tmp_path)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        load_served_model(str(tmp_path / "nothing"), tmp_path)
