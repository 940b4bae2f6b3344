"""Dialogs without tools: greetings, questions about the model, simple facts, lists, sums, definitions, stories."""

import random
from collections.abc import Mapping, Sequence

from examples.train_builtin.stories import ANIMALS, story, with_article

Turn = tuple[str, str]
"""A question and its answer."""

_WHO = (
    "I am the small model that ships with dunlin. I show how serving works; do not trust my facts.",
    "I am dunlin's built-in model. I am very small, so please do not trust what I say.",
)
_FIXED: Mapping[str, Sequence[str]] = {
    "Hello!|Hello|Hi|Hi there|Hey|Good day|Hello there!": (
        "Hello! How can I help you today?",
        "Hello! It is nice to meet you.",
    ),
    "Good morning!|Good morning": ("Good morning! How can I help you today?",),
    "How are you?|How are you today?|How do you do?": ("I am well, thank you. How can I help you?",),
    "Who are you?|What are you?|What is your name?|Tell me about yourself.|Introduce yourself.|Say hello and tell me "
    "who you are.|Are you a person?|Who made you?": _WHO,
    "What can you do?|What can you help me with?|How can you help me?|Help!|Can you help me?": (
        "I can chat, tell short stories, explain words, list things, add small numbers and call tools.",
    ),
    "Thank you!|Thanks|Thank you very much.|Thanks a lot!": ("You are welcome!",),
    "Goodbye!|Bye|See you later.|Good night!": ("Goodbye! Have a nice day.",),
    "What would you like to talk about?|What shall we talk about?|What do you like?": (
        "I would like to talk about animals, words and small stories. What do you like?",
    ),
    "Can I trust you?|Are you always right?|Do you know everything?|Are you smart?": (
        "No. I am a very small model, and I often make mistakes. Please check what I say.",
    ),
    "What is the news today?|What happened today?|Who won the game?|What is the price of gold?": (
        "I cannot know that. I am a small model, and I have no news.",
    ),
    "What is dunlin?|Tell me about dunlin.|Explain dunlin.": (
        "Dunlin is a system that serves language models on a cluster of machines.",
        "A dunlin is a small bird of the shore. Here it is the name of a system that serves language models.",
    ),
    "What is a KV cache?|Explain the KV cache.|What is the KV cache for?": (
        "The KV cache keeps the keys and values of earlier tokens, so that they need not be computed again.",
    ),
    "What is a token?|Explain what a token is.": ("A token is a small piece of text, such as a word or part of one.",),
    "What is a language model?|Explain language models.|How do you work?|How does a language model work?": (
        "A language model reads a text and predicts the next token, again and again.",
    ),
    "What is a dispatcher?|What does a dispatcher do?": (
        "A dispatcher takes requests from clients and sends each to an instance that has room for it.",
    ),
    "What is prefill?|Explain prefill.": ("In prefill the model reads the whole prompt before it writes.",),
    "What is decoding?|Explain decoding.|What is a decode step?": (
        "In decoding the model writes one token at a time.",
    ),
    "What happens when an engine dies?|What happens when an instance is killed?": (
        "Another one takes over the text, and you read on as if nothing had happened.",
    ),
    "Tell me a joke.|Do you know a joke?|Make me laugh.": (
        "Why did the bird sit on the computer? It wanted to keep an eye on the mouse.",
    ),
    "How many days are in a week?": ("There are seven days in a week.",),
    "How many months are in a year?": ("There are twelve months in a year.",),
    "Why is the sky blue?|What makes the sky blue?": (
        "The sky is blue because the air scatters blue light more than red light.",
    ),
    "Why does it rain?|What makes rain?": ("Water rises from the sea as vapour, becomes clouds, and falls as rain.",),
    "How do birds fly?|Why can birds fly?": ("Birds fly by moving their wings, which push the air down.",),
    "What is the sun?|Explain the sun.": ("The sun is a star. It gives us light and heat.",),
    "How do plants grow?|Why do plants need light?": (
        "Plants grow with light, water and air. Light gives them energy.",
    ),
}
_CAPITALS = dict(
    pair.split(":")
    for pair in "France:Paris England:London Germany:Berlin Italy:Rome Spain:Madrid Japan:Tokyo Norway:Oslo "
    "Austria:Vienna Greece:Athens Egypt:Cairo Portugal:Lisbon Ireland:Dublin Poland:Warsaw Russia:Moscow China:Beijing "
    "Finland:Helsinki Sweden:Stockholm Denmark:Copenhagen Hungary:Budapest Canada:Ottawa Kenya:Nairobi Peru:Lima "
    "Cuba:Havana Belgium:Brussels Turkey:Ankara India:Delhi".split()
)
_LISTS: Mapping[str, str] = {
    "fruits": "apples pears plums cherries oranges grapes lemons bananas",
    "animals": "dogs cats horses cows birds rabbits foxes bears",
    "colours": "red blue green yellow black white orange brown",
    "birds": "owls ducks gulls swans robins crows dunlins sparrows",
    "vegetables": "carrots beans peas onions potatoes tomatoes cabbages leeks",
    "tools": "hammers saws knives needles brushes axes spades rakes",
    "trees": "oaks pines birches willows maples elms beeches ashes",
}
_OPPOSITES = dict(
    pair.split(":")
    for pair in "hot:cold big:small up:down day:night light:dark old:young fast:slow good:bad happy:sad high:low "
    "open:closed early:late hard:soft wet:dry rich:poor left:right full:empty strong:weak long:short".split()
)
_NUMBERS = "zero one two three four five six seven eight nine ten".split()


def chat_turn(pick: random.Random, glosses: Mapping[str, str]) -> Turn:
    """One question and its answer, of a kind drawn at random."""
    kind = pick.choices(("fixed", "fact", "list", "sum", "word", "story"), (38, 16, 12, 14, 22, 9))[0]
    if kind == "fixed":
        asked = pick.choice(list(_FIXED))
        return pick.choice(asked.split("|")), pick.choice(_FIXED[asked])
    if kind == "word":
        word = pick.choice(list(glosses))
        return _definition(pick, word, glosses[word])
    return {"fact": _fact, "list": _listing, "sum": _sum, "story": _story}[kind](pick)


def _definition(pick: random.Random, word: str, gloss: str) -> Turn:
    ask = pick.choice(
        (
            f"What is {with_article(word)}?",
            f"What is {word}?",
            f"What does {word} mean?",
            f"Explain the word {word}.",
            f"Define {word}.",
        )
    )
    return ask, f"{word.capitalize()} means {gloss}."


def _fact(pick: random.Random) -> Turn:
    if pick.random() < 0.6:
        country = pick.choice(list(_CAPITALS))
        ask = pick.choice((f"What is the capital of {country}?", f"Which city is the capital of {country}?"))
        return ask, f"The capital of {country} is {_CAPITALS[country]}."
    word = pick.choice(list(_OPPOSITES))
    return pick.choice((f"What is the opposite of {word}?", f"Name the opposite of {word}.")), (
        f"The opposite of {word} is {_OPPOSITES[word]}."
    )


def _listing(pick: random.Random) -> Turn:
    what = pick.choice(list(_LISTS))
    count = pick.randrange(2, 6)
    found = pick.sample(_LISTS[what].split(), count)
    ask = pick.choice(("Name {} {}.", "List {} {}.", "Give me {} {}.", "Can you name {} {}?"))
    said = ", ".join(found[:-1]) + " and " + found[-1]
    return ask.format(_NUMBERS[count], what), f"{_NUMBERS[count].capitalize()} {what} are {said}."


def _sum(pick: random.Random) -> Turn:
    left, right = pick.randrange(11), pick.randrange(11)
    ask = pick.choice((f"What is {left} plus {right}?", f"What is {left} + {right}?", f"Add {left} and {right}."))
    return ask, f"{left} plus {right} is {left + right}."


def _story(pick: random.Random) -> Turn:
    if pick.random() < 0.5:
        animal = pick.choice(ANIMALS)
        ask = pick.choice(("Tell me a story about {}.", "Write a short story about {}.", "Tell a story about {}."))
        return ask.format(with_article(animal)), story(pick, animal)
    ask = pick.choice(("Tell me a story.", "Tell me a short story.", "Write a story.", "Please tell me a story."))
    return ask, story(pick)
