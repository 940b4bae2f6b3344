"""Which requests a door lets in at all: functions over what a request says of itself. Knows no queue and no limit."""

from collections.abc import Callable

from dunlin.messages.types import RequestClass

AdmitPolicy = Callable[[RequestClass], str]
"""The class of a new request to why it is not let in; empty: it is."""


def everyone(request_class: RequestClass) -> str:
    """Every class."""
    return ""


def interactive_only(request_class: RequestClass) -> str:
    """No batch work: what waits for nobody must not slow down what somebody waits for (ConServe's Online-Only)."""
    if request_class is RequestClass.INTERACTIVE:
        return ""
    return "batch requests are not served here: this deployment takes interactive ones only (its preset says so)"


ADMIT_POLICIES: dict[str, AdmitPolicy] = {"all": everyone, "interactive_only": interactive_only}
