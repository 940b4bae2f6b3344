"""What is measured fits the engine, covers every regime, and comes in one fixed order."""

from cli.profiling.trial_plan import GPU_SIZES, QUICK_SIZES, TrialSizes, copy_lengths, step_trials, trial_sizes


def test_every_trial_fits_in_slots_and_positions() -> None:
    for slots, positions in ((4096, 512), (600, 16384)):
        for trial in step_trials(TrialSizes(), slots, positions, repeats=8):
            longest = max(row.past + row.new for row in trial.rows) + 8
            assert longest < positions
            assert sum(row.past + row.new for row in trial.rows if row.decode) <= slots


def test_every_regime_is_covered_and_spread() -> None:
    regimes = [trial.regime for trial in step_trials(TrialSizes(), 65536, 16384)]
    assert {*regimes} == {"decode", "prefill", "mixed", "sampled"}
    assert {"decode", "prefill", "mixed"} <= {*regimes[:20]}
    assert regimes == [trial.regime for trial in step_trials(TrialSizes(), 65536, 16384)]


def test_a_gpu_is_tried_with_larger_steps() -> None:
    chosen = [trial_sizes(is_cpu, is_quick) for is_cpu in (True, False) for is_quick in (True, False)]
    assert chosen == [QUICK_SIZES, TrialSizes(), QUICK_SIZES, GPU_SIZES]
    largest = [max(sum(row.new for row in trial.rows) for trial in step_trials(each, 320_000, 131_072))
               for each in chosen]  # fmt: skip
    assert largest == [256, 512, 256, 2048]


def test_rows_with_a_temperature_are_tried_beside_as_many_greedy_ones() -> None:
    trials = step_trials(TrialSizes(), 65536, 16384)
    sampled = [trial.batch() for trial in trials if trial.is_sampled]
    assert sorted(batch.sampled_rows for batch in sampled) == [1, 4, 16, 48]
    assert all(batch.sampled_rows == batch.decode_rows for batch in sampled)
    assert {batch.sampled_rows for batch in (trial.batch() for trial in trials if not trial.is_sampled)} == {0}


def test_a_first_look_measures_less() -> None:
    assert len(step_trials(QUICK_SIZES, 65536, 16384)) < len(step_trials(TrialSizes(), 65536, 16384)) / 2


def test_moves_leave_room() -> None:
    assert copy_lengths(600) == [1, 4, 16, 64, 128, 256]
