"""All the text of the training: rendered dialogs, stories one after another, example sentences of WordNet."""

import random
from collections.abc import Sequence
from pathlib import Path

from dunlin.text.chat_template import ChatTemplate
from examples.train_builtin.dialogs import chat_turn
from examples.train_builtin.stories import story
from examples.train_builtin.tools import Message, tool_dialog
from examples.train_builtin.wordnet import definitions, sentences

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SHARES = {"all": (74, 11, 7, 8), "dialogs": (92, 6, 2, 0), "tools": (44, 50, 4, 2)}
"""Of chats, tool calls, stories and sentences, in texts out of 100: of the first training; of one that teaches which
answer belongs to which question; of one that teaches to copy what was asked for into a call.
"""
DEFINED_WORDS = 120
"""What a model of this size keeps in some minutes of training."""


def documents(wordnet: Path, count: int, seed: int, shares: Sequence[int]) -> list[str]:
    """So many texts, each complete."""
    pick = random.Random(seed)
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), {}, TEMPLATE)
    glosses = definitions(wordnet, DEFINED_WORDS)
    examples = list(sentences(wordnet))
    texts = []
    for _ in range(count):
        kind = pick.choices(("chat", "tool", "stories", "sentences"), shares)[0]
        if kind == "stories":
            texts.append("\n".join(story(pick) for _ in range(pick.randrange(1, 8))))
        elif kind == "sentences":
            texts.append(" ".join(pick.sample(examples, pick.randrange(1, 5))))
        elif kind == "tool":
            messages, tools = tool_dialog(pick)
            texts.append(template.render(messages, add_generation_prompt=False, tools=tools))
        else:
            texts.append(template.render(_chat(pick, glosses), add_generation_prompt=False, tools=None))
    return texts


def _chat(pick: random.Random, glosses: dict[str, str]) -> list[Message]:
    messages: list[Message] = []
    if pick.random() < 0.15:
        system = ("You are a helpful assistant.", "Answer in one sentence.", "You are a friendly assistant. Be brief.")
        messages.append({"role": "system", "content": pick.choice(system)})
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        question, answer = chat_turn(pick, glosses)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages
