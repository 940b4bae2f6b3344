"""Whether the objectives that a request, or a tenant, asks for are allowed. Pure; knows no queue."""

from dunlin.limits import InvalidField
from services.dispatcher.config import ObjectiveBoundsConfig


def objectives_error(ttft_s: float | None, tpot_s: float | None, bounds: ObjectiveBoundsConfig) -> InvalidField | None:
    """The first of these objectives that is below its least, as an error; None: neither is. None as one: not asked."""
    asked = (("ttft_objective_s", ttft_s, bounds.least_ttft_s), ("tpot_objective_s", tpot_s, bounds.least_tpot_s))
    for name, value_s, least_s in asked:
        if value_s is not None and not least_s <= value_s:
            return InvalidField(name, f"must be at least {least_s:g} here, not {value_s:g}")
    return None
