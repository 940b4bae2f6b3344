"""Admission: the limits on length, queue and outages, and when a refused client may retry."""

from dunlin.messages.door import Quota, Quotas, RejectionCode
from dunlin.messages.types import RequestClass
from services.dispatcher.admission.controller import MAX_RETRY_S, MIN_RETRY_S, AdmissionController
from services.dispatcher.admission.wait_estimate import SAMPLES_KEPT
from services.dispatcher.config import AdmissionConfig
from tests.services.dispatcher.factories import submit


def test_the_limit_is_the_lesser_of_model_and_fleet() -> None:
    request = submit(range(6), max_tokens=4)
    for positions, limit, admitted in ((10, None, True), (9, None, False), (0, 10, True), (0, 9, False), (10, 9, False),
                                    (9, 10, False), (0, None, True)):  # fmt: skip
        admission = AdmissionController(AdmissionConfig(), positions)
        refusal = admission.refusal(request, 0, limit, 0.0)
        assert (refusal is None) is admitted
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


def test_the_queue_admits_exactly_max_queued() -> None:
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


def test_an_outage_begins_once_and_ends_when_an_instance_serves() -> None:
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


def test_a_name_that_no_instance_knows_waits_behind_what_waits_at_the_instances_too() -> None:
    admission = AdmissionController(AdmissionConfig(max_wait_s=4.0))
    admission.wait_estimate.interval_s = 1.0
    named = submit(idempotency="n/0", digest=b"d")
    assert admission.on_not_held(1, named, 1, 0.0, waiting=3) is None
    refusal = admission.on_not_held(1, named, 1, 0.0, waiting=4)
    assert refusal is not None
    assert (refusal.code, refusal.detail[:15]) == (RejectionCode.FULL, "5 requests wait")


def test_batch_work_too_is_refused_where_its_deadline_comes_before_its_turn() -> None:
    admission = AdmissionController(AdmissionConfig(max_wait_s=4.0))
    admission.wait_estimate.interval_s = 1.0
    batch = submit(request_class=RequestClass.BATCH, timeout_s=6.0)
    assert admission.refusal(batch, 6, None, 0.0) is None, "as long as it has time"
    refusal = admission.refusal(batch, 7, None, 0.0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == (RejectionCode.FULL, 1.0)


def test_a_request_without_a_limit_gets_what_the_fleet_holds_or_while_none_is_known_the_model() -> None:
    admission = AdmissionController(AdmissionConfig(), 100)
    admission.quotas.replace(Quotas((Quota("t", max_tokens=500),)), 0.0)
    asked = submit(range(3), max_tokens=None, tenant="t")
    assert admission.cap_max_tokens(asked, 50).max_tokens == 47
    assert admission.cap_max_tokens(asked, None).max_tokens == 97
