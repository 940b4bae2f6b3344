"""A real engine in which one token is poison: a step that computes it ends the process as a wild write would.

Run as `python -m tests.fakes.poison_engine` in place of `dunlin.engine`.
"""

import os
import signal
import sys
from typing import Any

from dunlin.engine.process.options import parse_options
from dunlin.runtime.parent_death import die_with_parent

POISON = 66


def main() -> int:
    options = parse_options(sys.argv[1:])
    die_with_parent(options.parent_pid)
    from dunlin.engine.decoder.decoder import Decoder
    from dunlin.engine.process import main

    embed = Decoder.embed

    def bitten(self: Decoder, tokens: Any) -> Any:
        if POISON in tokens.tolist():
            os.kill(os.getpid(), signal.SIGSEGV)
        return embed(self, tokens)

    Decoder.embed = bitten  # type: ignore[method-assign]
    return main.run(options)


if __name__ == "__main__":
    sys.exit(main())
