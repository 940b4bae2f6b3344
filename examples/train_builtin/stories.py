"""Short stories from patterns: simple sentences that follow from each other."""

import random

NAMES = "Anna Ben Clara David Emma Finn Grace Henry Ida Jack Lucy Max Nora Oliver Rosa Sam Tom Mia Leo Ella".split()
ANIMALS = "dog cat bird fox rabbit horse duck mouse frog turtle bear owl".split()
_PLACES = ("the forest", "the garden", "the river", "the beach", "the old house", "the village", "the hill", "the park")
_THINGS = ("a red ball", "an old key", "a small box", "a lost hat", "a blue kite", "a silver coin", "a wooden boat")
_MOODS = ("sunny", "rainy", "windy", "cold", "warm", "quiet", "snowy")
_ADJECTIVES = "kind brave curious clever quiet happy young patient".split()


def story(pick: random.Random, animal: str = "") -> str:
    """One story of six to nine sentences, about `animal` where one is named."""
    name, friend = pick.sample(NAMES, 2)
    animal = animal or pick.choice(ANIMALS)
    place, thing = pick.choice(_PLACES), pick.choice(_THINGS)
    it = thing.split(" ", 1)[1]
    begin = pick.choice(
        (
            f"Once upon a time there was {with_article(pick.choice(_ADJECTIVES))} child named {name}.",
            f"One {pick.choice(_MOODS)} morning, {name} went for a walk.",
            f"{name} lived in a small house near {place}.",
            f"It was a {pick.choice(_MOODS)} day, and {name} wanted to play outside.",
        )
    )
    middle = [
        pick.choice((f"{name} walked to {place} and looked around.", f"{name} loved to go to {place}.")),
        pick.choice((f"There {name} met a little {animal}.", f"A {animal} was sitting under a tree.")),
        pick.choice(
            (
                f'"Why are you so sad?" asked {name}.',
                f'"Can I help you?" asked {name}.',
                f'"Hello, {animal}!" said {name}.',
            )
        ),
        pick.choice((f'"I have lost {thing}," said the {animal}.', f'"I am looking for {thing}," said the {animal}.')),
        pick.choice(
            (
                f"They looked for the {it} all day.",
                "They looked behind every stone and every tree.",
                f"{name} called {friend}, and {friend} came to help.",
            )
        ),
        pick.choice(
            (
                f"At last they found the {it} near {pick.choice(_PLACES)}.",
                f"Then {name} saw the {it} in the grass.",
                f"In the evening {friend} found the {it} under a bush.",
            )
        ),
    ]
    end = pick.choice(
        (
            f"The {animal} was very happy and thanked {name}.",
            f"From that day on, {name} and the {animal} were good friends.",
            f"{name} went home with a smile and told {friend} about it.",
            "They sat down together and shared some bread and apples.",
        )
    )
    return " ".join([begin, *middle, end])


def with_article(word: str) -> str:
    """The word behind `a` or `an`."""
    return ("an " if word[0] in "aeiou" else "a ") + word
