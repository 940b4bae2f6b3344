"""Notes on a coarse profile: the reason, and its errors on points that its fit did not see.

Pure. Knows no device that ships: those come with their errors in the documents.
"""

from dataclasses import dataclass

COARSE_ERROR = 0.10
"""The relative error that `dunlin sim --against` allows."""
FEW_PASSES = 4
"""The default of `dunlin profile`; fewer meet a disturbance of the machine only once."""
SINGLE = "service"
"""Steps measured once each, as they follow each other: their error holds the machine's noise, in a good profile too."""


@dataclass(frozen=True, slots=True)
class ProfileQuality:
    """How a profile was measured. `quick`: with fewer sizes; `passes` over them; `steps` and `moves`: the mean relative
    errors of points left out of the fit, by kind.
    """

    quick: bool
    passes: int
    steps: tuple[tuple[str, float], ...]
    moves: tuple[tuple[str, float], ...] = ()


def why_coarse(quality: ProfileQuality) -> tuple[str, ...]:
    """The reason why a profile is coarse; empty: it is not."""
    reasons = ["--quick: few sizes"] if quality.quick else []
    if quality.passes < FEW_PASSES:
        reasons.append(f"{quality.passes} pass{'es' if quality.passes > 1 else ''} instead of {FEW_PASSES}")
    if any(error > COARSE_ERROR for regime, error in quality.steps if regime != SINGLE):
        reasons.append(f"its own error is above {COARSE_ERROR:.0%}")
    return tuple(reasons)


def quality_note(name: str, quality: ProfileQuality | None) -> str:
    """One line on the stored profile `name`, to stand beside figures that were made with it; empty if it is good."""
    if quality is None:
        return f"profile {name} is of an older version and does not say its own error: `dunlin profile` measures anew"
    reasons = why_coarse(quality)
    if not reasons:
        return ""
    errors = ", ".join(f"{regime} {error:.0%}" for regime, error in quality.steps)
    return (
        f"coarse: profile {name} ({'; '.join(reasons)}); its error on steps that it did not see: {errors}. "
        "Figures made with it can be off by as much and more"
    )
