"""Planted bugs, and the hunt for them: a check that nothing can fail is no check (`python -m simulator.zoo`)."""
