"""Checks of one client library: each says what it is, and one JSON line says how all ended. Needs the standard library.

Drivers run in the virtual environment of their client, `python -m benchmarks.clients.drivers.NAME URL MODEL`.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": PROMPT}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {
    "title": "Bird", "type": "object", "properties": {"colour": {"enum": ["grey", "red"]}}, "required": ["colour"],
    "additionalProperties": False,
}  # fmt: skip
"""Of a JSON text that ends soon, whatever a model without sense would like to say."""
SCHEMA_TOKENS = 200
KEY = "none"


class Checks:
    """Runs checks and keeps what failed."""

    def __init__(self) -> None:
        self.url, self.model = sys.argv[1], sys.argv[2]
        self._failed: dict[str, str] = {}
        self._passed = 0

    def check(self, name: str, work: Callable[[], Any]) -> None:
        """`work` passes unless it raises or returns False; a coroutine is run."""
        try:
            result = work()
            if asyncio.iscoroutine(result):
                result = asyncio.run(result)
            assert result is not False, "it is not so"
        except Exception as error:
            self._failed[name] = f"{type(error).__name__}: {error}"[:400]
        else:
            self._passed += 1

    def refuses(self, name: str, work: Callable[[], Any], kind: type[Exception], *words: str) -> None:
        """`work` must raise `kind`; its text, the field and the code that it names must hold every one of `words`."""

        def raises() -> None:
            try:
                work()
            except kind as error:
                said = f"{error} param={getattr(error, 'param', None)} code={getattr(error, 'code', None)}"
                missing = [word for word in words if word not in said]
                assert not missing, f"{missing} not in: {said}"
            else:
                raise AssertionError(f"no {kind.__name__}")

        self.check(name, raises)

    def finish(self) -> int:
        """Print the outcome; the exit code."""
        print(json.dumps({"passed": self._passed, "failed": self._failed}))
        return 1 if self._failed else 0
