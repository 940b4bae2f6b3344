"""The suite compares with the runner's iteration machine: without it there is nothing to collect."""

import importlib.util

collect_ignore = (
    [] if importlib.util.find_spec("dunlin.engine.execution.step_runner") is not None else ["test_conformance.py"]
)
