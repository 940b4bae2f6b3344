"""When a profile is coarse, and what is said of it."""

import pytest

from dunlin.cost.profile_quality import ProfileQuality, quality_note, why_coarse

GOOD = ProfileQuality(False, 4, (("decode", 0.05), ("prefill", 0.08), ("service", 0.3)), (("host_to_slab", 0.2),))


def test_a_good_profile_needs_no_note() -> None:
    assert why_coarse(GOOD) == ()
    assert quality_note("p.db", GOOD) == ""


@pytest.mark.parametrize(
    ("quality", "reason"),
    [
        (ProfileQuality(True, 4, GOOD.steps), "--quick: few sizes"),
        (ProfileQuality(False, 1, GOOD.steps), "1 pass instead of 4"),
        (ProfileQuality(False, 4, (("decode", 0.05), ("prefill", 0.11))), "its own error is above 10%"),
    ],
)
def test_a_coarse_one_says_why_and_its_own_error(quality: ProfileQuality, reason: str) -> None:
    note = quality_note("p.db", quality)
    assert note.startswith(
        f"coarse: profile p.db ({reason}); its error on steps that it did not see: decode 5%, prefill"
    )
    assert "\n" not in note


def test_an_older_profile_does_not_say() -> None:
    assert "is of an older version and does not say its own error" in quality_note("p.db", None)
