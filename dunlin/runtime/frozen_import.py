"""Imports of what stays as long as the process: the garbage collector need not look through it."""

import gc
import importlib
from types import ModuleType


def import_frozen(name: str) -> ModuleType:
    """Import a module with all that it imports. Raises ImportError.

    Processes that are forked from this one share its objects as long as nothing writes to them, a collector included.
    """
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    return module
