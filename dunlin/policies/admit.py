"""Which requests are admitted at all: functions over a request's class. Knows no queue and no limit."""

from collections.abc import Callable

from dunlin.messages.types import RequestClass

AdmitPolicy = Callable[[RequestClass], str]
"""Maps the class of a new request to the reason for its refusal; empty: admitted."""


def all_classes(request_class: RequestClass) -> str:
    """Admit every class."""
    return ""


def interactive_only(request_class: RequestClass) -> str:
    """Interactive requests alone: batch work is refused, so that it slows none of them (ConServe's Online-Only)."""
    if request_class is RequestClass.INTERACTIVE:
        return ""
    return "batch requests are not served here: this deployment takes interactive ones only (its preset says so)"


ADMIT_POLICIES: dict[str, AdmitPolicy] = {"all": all_classes, "interactive_only": interactive_only}
