"""The simulator: fidelity, presets, speed."""
