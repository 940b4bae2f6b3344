"""The demo's long text, which gets into trouble: followed all the time, shown now and then."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

import dunlin
from dunlin.messages.public import GenerateEvent
from examples.demo_screen import DemoScreen

_CHAPTER = (
    "One {mood} morning, {name} went for a walk. {name} walked to the forest and looked around. There {name} met a "
    'little {animal}. "Why are you so sad?" asked {name}. "I have lost {thing}," said the {animal}. They looked behind '
    "every stone and every tree. At last they found it near the river. The {animal} was very happy and thanked "
    "{name}.\n"
)
STORY = "".join(
    _CHAPTER.format(mood=mood, name=name, animal=animal, thing=thing)
    for mood, name, animal, thing in (
        ("sunny", "Anna", "fox", "a red ball"),
        ("rainy", "Ben", "bear", "an old key"),
        ("quiet", "Clara", "owl", "a small box"),
        ("windy", "Tom", "duck", "a lost hat"),
        ("cold", "Mia", "frog", "a blue kite"),
    )
)
"""Long enough that it is worth keeping what was computed of it."""


class StoryStream:
    """One long text, followed all the time and shown now and then. `pauses` are those since the last interruption."""

    def __init__(self, pieces: AsyncIterator[GenerateEvent], screen: DemoScreen) -> None:
        self.request, self.prompt_tokens = "", 0
        self.tokens: list[int] = []
        self.pauses: list[float] = []
        self._pieces = pieces
        self._screen = screen
        self._is_shown = False
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        last_s = time.monotonic()
        async for piece in self._pieces:
            self.request, self.prompt_tokens = piece.request or self.request, piece.prompt_tokens or self.prompt_tokens
            self.tokens += piece.tokens
            if piece.tokens:
                self.pauses.append(time.monotonic() - last_s)
                last_s = time.monotonic()
            if self._is_shown:
                print(piece.text.replace("\n", " "), end="", flush=True)

    async def show(self, tokens: int) -> None:
        """Print so many more, as they come. Raises RuntimeError when it ends before."""
        until = len(self.tokens) + tokens
        self._is_shown = True
        while len(self.tokens) < until:
            if self._following.done():
                raise RuntimeError(f"the story ended: {self._following.exception() or 'nothing more to tell'}")
            await asyncio.sleep(0.005)
        self._is_shown = False

    async def close(self) -> None:
        """Read no further."""
        self._following.cancel()
        await asyncio.wait([self._following])

    def interrupt(self, what: str) -> None:
        """Say in the text what happens to it now."""
        print(self._screen.loud(f" [{what}] "), end="", flush=True)
        self.pauses.clear()

    def note(self, text: str) -> None:
        """The narrator, below it."""
        print("\n")
        self._screen.note(text)


NO_END = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Words that would end a story, or begin a dialog."""


def request_story(client: dunlin.AsyncClient, tokens: int) -> AsyncGenerator[GenerateEvent, None]:
    """The story, from its beginning: the same words each time."""
    return client.stream(STORY, max_tokens=tokens, bad_words=NO_END, temperature=0.5, seed=11)
