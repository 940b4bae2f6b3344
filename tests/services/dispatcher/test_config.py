"""The configuration: a bad setting is named."""

from typing import Any

import pytest

from services.dispatcher.config import DispatcherConfig
from tests.settings import configured


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
