"""When a profile is coarse, and what is said of it."""

import pytest

from dunlin.cost.models import Quality
from dunlin.cost.quality import note_of, why_coarse

GOOD = Quality(False, 4, (("decode", 0.05), ("prefill", 0.08), ("service", 0.3)), (("host_to_slab", 0.2),))


def test_a_good_profile_needs_no_note() -> None:
    assert why_coarse(GOOD) == ()
    assert note_of("p.db", GOOD) == ""


@pytest.mark.parametrize(
    ("quality", "reason"),
    [
        (Quality(True, 4, GOOD.steps), "--quick: few sizes"),
        (Quality(False, 1, GOOD.steps), "1 pass instead of 4"),
        (Quality(False, 4, (("decode", 0.05), ("prefill", 0.11))), "its own error is above 10%"),
    ],
)
def test_a_coarse_one_says_why_and_its_own_error(quality: Quality, reason: str) -> None:
    note = note_of("p.db", quality)
    assert note.startswith(
        f"coarse: profile p.db ({reason}); its error on steps that it did not see: decode 5%, prefill"
    )
    assert "\n" not in note


def test_an_older_profile_does_not_say() -> None:
    assert "is of an older version and does not say its own error" in note_of("p.db", None)
