"""Whether a new request is taken: limits that hold before any work is spent on it.

Knows how long the queue is and how fast it drains, not what is in it; and for how long nobody could be asked.
"""

from collections import deque

from dunlin.messages.door import Rejected, Rejection, Submit
from dunlin.messages.types import RequestClass
from dunlin.policies.admit import ADMIT_POLICIES
from services.dispatcher.config import AdmissionConfig
from services.dispatcher.pace import PACE_KEPT, Pace
from services.dispatcher.quotas import TenantQuotas
from services.dispatcher.refusals import too_long

LEAST_RETRY_S = 0.5
MOST_RETRY_S = 30.0


class Admission:
    """Owns the pace (when the last requests ended), the drought (since when no instance could be asked), the quotas."""

    def __init__(self, config: AdmissionConfig, max_positions: int = 0) -> None:
        self.quotas = TenantQuotas()
        self.pace = Pace()
        self._config = config
        self._max_positions = max_positions
        self._ends_s: deque[float] = deque(maxlen=PACE_KEPT)
        self._drought_since_s: float | None = None
        self.droughts = 0

    def refusal(
        self, submit: Submit, queued: int, limit: int | None, now_s: float, waiting: int = 0
    ) -> Rejected | None:
        """Why this request is not taken; None: it is. `limit` is the longest sequence that any instance can hold;
        `queued` wait here, `waiting` more at the instances.
        """
        return (
            self._invalid(submit)
            or self._unwanted(submit)
            or self._too_long(submit, limit)
            or self._unavailable(now_s)
            or self._full(submit, queued, now_s)
            or self._late(submit, queued + waiting)
            or self.quotas.refusal(submit, now_s)
        )

    def bounded(self, submit: Submit, limit: int | None) -> Submit:
        """The request as its tenant's quota bounds it; ask `refusal` about that one."""
        return self.quotas.bounded(submit, limit or self._max_positions)

    def admitted(self, number: int, submit: Submit) -> None:
        """The request that `refusal` had nothing against came in under this number."""
        self.quotas.admit(number, submit)

    def served(self, now_s: float, others_wait: bool) -> None:
        """A request that an instance had is over; whether others wait for their turn."""
        self.pace.ended(now_s, others_wait)

    def ended(self, number: int, generated: int, now_s: float) -> None:
        """A request left, with so many tokens."""
        self._ends_s.append(now_s)
        self.quotas.settle(number, generated, now_s)

    def retry_after_s(self, queued: int, now_s: float) -> float:
        """When the queue should have drained by half, at the pace of the last requests; seconds, within bounds."""
        if not self._ends_s:
            return LEAST_RETRY_S
        each_s = (now_s - self._ends_s[0]) / len(self._ends_s)
        return _bounded(each_s * queued / 2)

    def rain(self, can_serve: bool, now_s: float) -> bool:
        """Say whether somebody can serve; True if a drought just began."""
        if can_serve:
            self._drought_since_s = None
            return False
        if self._drought_since_s is not None:
            return False
        self._drought_since_s = now_s
        self.droughts += 1
        return True

    def is_drought(self, drought: int) -> bool:
        """Whether drought number `drought` lasts."""
        return self._drought_since_s is not None and drought == self.droughts

    def _invalid(self, submit: Submit) -> Rejected | None:
        if not submit.tokens:
            return Rejected(Rejection.INVALID, "the prompt has no tokens: send at least one")
        if submit.max_tokens is not None and submit.max_tokens < 1:
            return Rejected(Rejection.INVALID, f"max_tokens is {submit.max_tokens}: at least 1 is needed")
        if submit.timeout_s is not None and not 0 < submit.timeout_s < float("inf"):
            return Rejected(Rejection.INVALID, f"timeout_s is {submit.timeout_s}: a positive number is needed")
        return None

    def _unwanted(self, submit: Submit) -> Rejected | None:
        if submit.key:
            return None  # another dispatcher has let it in
        reason = ADMIT_POLICIES[self._config.policy](submit.request_class)
        return Rejected(Rejection.FORBIDDEN, reason) if reason else None

    def _too_long(self, submit: Submit, limit: int | None) -> Rejected | None:
        most = min(limit or self._max_positions, self._max_positions or limit or 0)
        asked = len(submit.tokens) + (submit.max_tokens or 1)
        if not most or asked <= most:
            return None
        return Rejected(Rejection.TOO_LONG, too_long(len(submit.tokens), submit.max_tokens, most))

    def _unavailable(self, now_s: float) -> Rejected | None:
        since_s = self._drought_since_s
        if since_s is None or now_s - since_s < self._config.unavailable_after_s:
            return None
        text = f"no instance has been able to serve for {now_s - since_s:.0f} s"
        return Rejected(Rejection.UNAVAILABLE, text, self._config.unavailable_after_s)

    def _full(self, submit: Submit, queued: int, now_s: float) -> Rejected | None:
        # One that was admitted elsewhere has been promised an answer.
        most = self._config.max_queued * (2 if submit.key else 1)
        if queued < most:
            return None
        text = f"{queued} requests wait already, as many as may"
        return Rejected(Rejection.FULL, text, self.retry_after_s(queued, now_s))

    def _late(self, submit: Submit, ahead: int) -> Rejected | None:
        """Refused now it can go elsewhere, or come again when there is room; served too late it costs all the same."""
        if submit.key:
            return None
        wait_s = self.pace.wait_s(ahead)
        if submit.timeout_s is not None and wait_s > submit.timeout_s:
            text = f"its turn would come in {wait_s:.1f} s, and it is given up after {submit.timeout_s:g} s"
            return Rejected(Rejection.FULL, text, _bounded(wait_s - submit.timeout_s))
        most_s = self._config.max_wait_s
        if wait_s <= most_s or submit.request_class is RequestClass.BATCH:
            return None
        text = (
            f"{ahead} requests wait already: its turn would come in {wait_s:.1f} s, more than the {most_s:g} s allowed"
        )
        return Rejected(Rejection.FULL, text, _bounded(wait_s - most_s))


def _bounded(seconds: float) -> float:
    return min(MOST_RETRY_S, max(LEAST_RETRY_S, seconds))
