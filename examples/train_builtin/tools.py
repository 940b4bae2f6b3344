"""Dialogs with tools: a question, the call that it takes, what the tool said, and the answer."""

import json
import random
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
CITIES = (
    "Paris London Berlin Rome Madrid Tokyo Oslo Vienna Athens Cairo Lisbon Dublin Prague Warsaw Boston Chicago Delhi "
    "Beijing Sydney Toronto Moscow Helsinki Zurich Munich Seattle Denver Nairobi Lima"
).split()


def function(name: str, description: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A tool's description as clients of the OpenAI API send it; each argument is a string."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function("get_weather", "The weather in a city", {"city": "The city"})
CLOCK = function("get_time", "The time in a city", {"city": "The city"})
SUM = function("calculate", "Compute an expression", {"expression": "What to compute"})


def tool_dialog(pick: random.Random) -> tuple[list[Message], list[dict[str, Any]]]:
    """The messages of one dialog and the tools that it was given."""
    wanted = pick.choice((WEATHER, WEATHER, CLOCK, SUM))
    others = [one for one in (WEATHER, CLOCK, SUM) if one is not wanted and pick.random() < 0.4]
    tools = [_varied(one, pick) for one in [wanted, *others]]
    pick.shuffle(tools)
    question, arguments, said, answer = _CASES[wanted["function"]["name"]](pick)
    call = {"type": "function", "function": {"name": wanted["function"]["name"], "arguments": arguments}}
    messages: list[Message] = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    if pick.random() < 0.6:
        messages += [{"role": "tool", "content": said}, {"role": "assistant", "content": answer}]
    return messages, tools


def _varied(tool: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """The same tool, described in other words: a client's description is not the one of the training."""
    function_of = dict(tool["function"])
    prefix = pick.choice(("", "Get ", "Returns ", "Look up ", "Tells "))
    function_of["description"] = prefix + function_of["description"].lower() if prefix else function_of["description"]
    if pick.random() < 0.5:
        plain = {key: {"type": "string"} for key in function_of["parameters"]["properties"]}
        function_of["parameters"] = {**function_of["parameters"], "properties": plain}
    return {"type": "function", "function": function_of}


def _weather(pick: random.Random) -> tuple[str, dict[str, str], str, str]:
    city, degrees, sky = pick.choice(CITIES), pick.randrange(0, 35), pick.choice(("sunny", "cloudy", "rainy", "windy"))
    question = pick.choice(
        (
            f"What is the weather in {city}?",
            f"What's the weather like in {city} today?",
            f"How is the weather in {city}?",
            f"Is it warm in {city}?",
            f"Tell me the weather in {city}.",
            f"Will it rain in {city} today?",
        )
    )
    said = pick.choice((json.dumps({"temperature": degrees, "sky": sky}), f"{degrees} degrees, {sky}"))
    return question, {"city": city}, said, f"It is {sky} in {city}, with {degrees} degrees."


def _clock(pick: random.Random) -> tuple[str, dict[str, str], str, str]:
    city, time = pick.choice(CITIES), f"{pick.randrange(24):02}:{pick.randrange(60):02}"
    question = pick.choice(
        (f"What time is it in {city}?", f"Tell me the time in {city}.", f"How late is it in {city}?")
    )
    said = pick.choice((json.dumps({"time": time}), time))
    return question, {"city": city}, said, f"It is {time} in {city}."


def _sum(pick: random.Random) -> tuple[str, dict[str, str], str, str]:
    left, right = pick.randrange(2, 100), pick.randrange(2, 100)
    sign, word, value = pick.choice(
        (("+", "plus", left + right), ("*", "times", left * right), ("-", "minus", left - right))
    )
    question = pick.choice(
        (f"What is {left} {word} {right}?", f"What is {left} {sign} {right}?", f"Compute {left} {sign} {right}.")
    )
    return question, {"expression": f"{left} {sign} {right}"}, str(value), f"The result is {value}."


_CASES = {"get_weather": _weather, "get_time": _clock, "calculate": _sum}
