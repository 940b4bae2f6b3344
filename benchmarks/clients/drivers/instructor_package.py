"""instructor: an object of a class by its JSON schema, and tools, which the built-in model has not, refused."""

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

from benchmarks.clients.drivers.checks import KEY, MESSAGES, SCHEMA_TOKENS, Checks


class Bird(BaseModel):
    """What is asked for: nothing beside it, or a model without sense adds to it for ever."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["grey", "red"]


def main() -> int:
    """The command."""
    checks = Checks()
    client = openai.OpenAI(base_url=f"{checks.url}/v1", api_key=KEY, max_retries=0)

    def ask(mode: instructor.Mode) -> Bird:
        made = instructor.from_openai(client, mode=mode)
        bird: Bird = made.chat.completions.create(
            model=checks.model, messages=MESSAGES, max_tokens=SCHEMA_TOKENS, max_retries=0, response_model=Bird
        )
        return bird

    checks.check("JSON schema", lambda: ask(instructor.Mode.JSON_SCHEMA).colour in ("grey", "red"))
    checks.refuses("tools", lambda: ask(instructor.Mode.TOOLS), Exception, "tools:")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
