"""Whether the objectives that a request, or a tenant, asks for are allowed. Pure; knows no queue."""

from services.dispatcher.config import ObjectiveBoundsConfig


def objectives_error(ttft_s: float | None, tpot_s: float | None, bounds: ObjectiveBoundsConfig) -> str:
    """What is wrong with these objectives, by the field's name; empty: nothing. None: none is asked for."""
    asked = (("ttft_objective_s", ttft_s, bounds.least_ttft_s), ("tpot_objective_s", tpot_s, bounds.least_tpot_s))
    for name, value_s, least_s in asked:
        if value_s is not None and not least_s <= value_s:
            return f"{name} is {value_s:g}: at least {least_s:g} seconds may be asked for here"
    return ""
