"""What is measured fits the engine, covers every regime, and comes in one fixed order."""

from cli.profiling.trial_plan import QUICK_SIZES, TrialSizes, copy_lengths, step_trials


def test_every_trial_fits_in_slots_and_positions() -> None:
    for slots, positions in ((4096, 512), (600, 16384)):
        for trial in step_trials(TrialSizes(), slots, positions, repeats=8):
            longest = max(row.past + row.new for row in trial.rows) + 8
            assert longest < positions
            assert sum(row.past + row.new for row in trial.rows if row.decode) <= slots


def test_every_regime_is_covered_and_spread() -> None:
    regimes = [trial.regime for trial in step_trials(TrialSizes(), 65536, 16384)]
    assert {*regimes} == {"decode", "prefill", "mixed"} == {*regimes[:20]}
    assert regimes == [trial.regime for trial in step_trials(TrialSizes(), 65536, 16384)]


def test_a_first_look_measures_less() -> None:
    assert len(step_trials(QUICK_SIZES, 65536, 16384)) < len(step_trials(TrialSizes(), 65536, 16384)) / 2


def test_moves_leave_room() -> None:
    assert copy_lengths(600) == [1, 4, 16, 64, 128, 256]
