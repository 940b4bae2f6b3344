"""Whether a new request is admitted: limits that are checked before any work is spent on it.

Knows the length of the queue, how fast it drains and how long no instance has been serving; not the queued requests.
"""

from collections import deque

from dunlin.messages.door import RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import RequestClass
from dunlin.policies.admit import ADMIT_POLICIES
from services.dispatcher.admission.objectives import objectives_error
from services.dispatcher.admission.quotas import TenantQuotas
from services.dispatcher.admission.refusals import too_long_text
from services.dispatcher.admission.wait_estimate import SAMPLES_KEPT, WaitEstimator
from services.dispatcher.config import AdmissionConfig, ObjectiveBoundsConfig

MIN_RETRY_S = 0.5
MAX_RETRY_S = 30.0


class AdmissionController:
    """Owns the tenants' quotas, the wait estimate and the outage (since when no instance has been serving).

    `outages` counts the outages so far, so that a timer of an earlier one is recognised.
    """

    def __init__(
        self, config: AdmissionConfig, max_positions: int = 0, objectives: ObjectiveBoundsConfig | None = None
    ) -> None:
        self.quotas = TenantQuotas()
        self.wait_estimate = WaitEstimator()
        self._config = config
        self._max_positions = max_positions
        self._objectives = objectives or ObjectiveBoundsConfig()
        self._ends_s: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._outage_since_s: float | None = None
        self.outages = 0

    def refusal(
        self, submit: Submit, queued: int, limit: int | None, now_s: float, waiting: int = 0
    ) -> SubmitRejected | None:
        """The reason for refusing this request, or None if it is admitted.

        Args:
            submit: the request, its `max_tokens` capped by `cap_max_tokens`.
            queued: requests that wait in this dispatcher and count against the bound of its queue; for one that an
                instance may run already also those about which instances are asked.
            limit: tokens of the longest sequence that any instance can hold; None while no instance is known.
            now_s: the core's time.
            waiting: requests of its class that wait at the instances for slots.
        """
        return (
            self._invalid(submit)
            or self._too_strict(submit)
            or self._class_not_admitted(submit)
            or self._too_long(submit, limit)
            or self._unavailable(now_s)
            or self._queue_full(queued, now_s, 2 if submit.may_be_held else 1)
            or (None if submit.may_be_held else self._wait_too_long(submit, queued + waiting))
            or self.quotas.refusal(submit, now_s)
        )

    def cap_max_tokens(self, submit: Submit, limit: int | None) -> Submit:
        """The request with `max_tokens` bounded by its tenant's quota: the one to pass to `refusal`."""
        return self.quotas.cap_max_tokens(submit, limit or self._max_positions)

    def on_admitted(self, number: int, submit: Submit) -> None:
        """Reserve the tenant's quota for a request that `refusal` has just admitted under this journal number."""
        self.quotas.reserve(number, submit)

    def on_not_held(
        self, number: int, submit: Submit, queued: int, now_s: float, waiting: int
    ) -> SubmitRejected | None:
        """No instance runs an admitted request that one might have run: the reason for refusing it as a new one.

        With a key it was admitted by another dispatcher, and its client was promised an answer: the queue has room.
        """
        refusal = None
        if not submit.key:
            refusal = self._queue_full(queued, now_s) or self._wait_too_long(submit, queued + waiting)
        return refusal or self.quotas.on_not_held(number, submit, now_s)

    def on_rejected(self, number: int) -> None:
        """An admitted request is refused after all."""
        self.quotas.withdraw(number)

    def on_served(self, now_s: float, others_wait: bool) -> None:
        """A dispatched request ended. `others_wait`: at least one request waits, here or at an instance."""
        self.wait_estimate.on_served(now_s, others_wait)

    def on_ended(self, number: int, generated: int, now_s: float) -> None:
        """An admitted request ended after `generated` tokens: the rest of its quota is refunded."""
        self._ends_s.append(now_s)
        self.quotas.refund(number, generated, now_s)

    def retry_after_s(self, queued: int, now_s: float) -> float:
        """Seconds until half the queue has drained at the rate of the last `SAMPLES_KEPT` ends, within MIN and MAX."""
        if not self._ends_s:
            return MIN_RETRY_S
        each_s = (now_s - self._ends_s[0]) / len(self._ends_s)
        return _bounded(each_s * queued / 2)

    def update_outage(self, can_serve: bool, now_s: float) -> bool:
        """Note whether any instance can serve; True if an outage just began."""
        if can_serve:
            self._outage_since_s = None
            return False
        if self._outage_since_s is not None:
            return False
        self._outage_since_s = now_s
        self.outages += 1
        return True

    def is_outage(self, outage: int) -> bool:
        """Whether outage number `outage` has not ended."""
        return self._outage_since_s is not None and outage == self.outages

    def _invalid(self, submit: Submit) -> SubmitRejected | None:
        if not submit.tokens:
            return SubmitRejected(RejectionCode.INVALID, "the prompt has no tokens: send at least one")
        if submit.max_tokens is not None and submit.max_tokens < 1:
            return SubmitRejected(RejectionCode.INVALID, f"max_tokens is {submit.max_tokens}: at least 1 is needed")
        if submit.timeout_s is not None and not 0 < submit.timeout_s < float("inf"):
            return SubmitRejected(
                RejectionCode.INVALID, f"timeout_s is {submit.timeout_s}: a positive number is needed"
            )
        return None

    def _too_strict(self, submit: Submit) -> SubmitRejected | None:
        if submit.key:
            return None  # another dispatcher has let it in
        error = objectives_error(submit.ttft_objective_s, submit.tpot_objective_s, self._objectives)
        return None if error is None else SubmitRejected(RejectionCode.INVALID, str(error), field=error.name)

    def _class_not_admitted(self, submit: Submit) -> SubmitRejected | None:
        if submit.key:
            return None  # another dispatcher has let it in
        reason = ADMIT_POLICIES[self._config.policy](submit.request_class)
        return SubmitRejected(RejectionCode.FORBIDDEN, reason) if reason else None

    def _too_long(self, submit: Submit, limit: int | None) -> SubmitRejected | None:
        most = min(limit or self._max_positions, self._max_positions or limit or 0)
        length = len(submit.tokens) + (submit.max_tokens or 1)
        if not most or length <= most:
            return None
        return SubmitRejected(RejectionCode.TOO_LONG, too_long_text(len(submit.tokens), submit.max_tokens, most))

    def _unavailable(self, now_s: float) -> SubmitRejected | None:
        since_s = self._outage_since_s
        if since_s is None or now_s - since_s < self._config.unavailable_after_s:
            return None
        text = f"no instance has been able to serve for {now_s - since_s:.0f} s"
        return SubmitRejected(RejectionCode.UNAVAILABLE, text, self._config.unavailable_after_s)

    def _queue_full(self, queued: int, now_s: float, times: int = 1) -> SubmitRejected | None:
        """`times`: a request that may have been admitted elsewhere finds room in a queue that is twice as long."""
        if queued < times * self._config.max_queued:
            return None
        text = f"{queued} requests wait already, as many as may"
        return SubmitRejected(RejectionCode.FULL, text, self.retry_after_s(queued, now_s))

    def _wait_too_long(self, submit: Submit, ahead: int) -> SubmitRejected | None:
        """Refuse a request whose turn would come too late: its client can retry, and a late answer costs as much."""
        wait_s = self.wait_estimate.wait_s(ahead)
        if submit.timeout_s is not None and wait_s > submit.timeout_s:
            text = f"its turn would come in {wait_s:.1f} s, and it is given up after {submit.timeout_s:g} s"
            return SubmitRejected(RejectionCode.FULL, text, _bounded(wait_s - submit.timeout_s))
        most_s = self._config.max_wait_s
        if wait_s <= most_s or submit.request_class is RequestClass.BATCH:
            return None
        text = (
            f"{ahead} requests wait already: its turn would come in {wait_s:.1f} s, more than the {most_s:g} s allowed"
        )
        return SubmitRejected(RejectionCode.FULL, text, _bounded(wait_s - most_s))


def _bounded(seconds: float) -> float:
    return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds))
