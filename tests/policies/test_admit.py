"""Whom the door lets in."""

from dunlin.messages.types import RequestClass
from dunlin.policies.admit import all_classes, interactive_only


def test_everyone_is_everyone() -> None:
    assert [all_classes(request_class) for request_class in RequestClass] == ["", ""]


def test_batch_work_is_told_why_it_is_not_served() -> None:
    assert interactive_only(RequestClass.INTERACTIVE) == ""
    assert "batch requests are not served here" in interactive_only(RequestClass.BATCH)
