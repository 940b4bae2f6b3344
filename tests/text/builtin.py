"""Where the built-in tokenizer lies."""

from pathlib import Path

import dunlin.text

BUILTIN = Path(dunlin.text.__file__).parent / "data"
EMOJI = "🦜"
