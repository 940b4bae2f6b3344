"""Which classes of requests a deployment admits: functions over a request's class. Knows no queue and no limit."""

from collections.abc import Callable

from dunlin.messages.types import RequestClass

AdmitPolicy = Callable[[RequestClass], str]
"""From the class of a new request to the reason for refusing it; empty: it is admitted."""


def all_classes(request_class: RequestClass) -> str:
    """Admit every class."""
    return ""


def interactive_only(request_class: RequestClass) -> str:
    """Admit interactive requests only: no batch work slows them (the Online-Only baseline of ConServe)."""
    if request_class is RequestClass.INTERACTIVE:
        return ""
    return "batch requests are not served here: this deployment takes interactive ones only (its preset says so)"


ADMIT_POLICIES: dict[str, AdmitPolicy] = {"all": all_classes, "interactive_only": interactive_only}
