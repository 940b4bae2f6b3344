"""instructor: every manner of asking for a schema that the door would have to enforce is refused by its field."""

import sys

import instructor
import openai
from pydantic import BaseModel

from benchmarks.clients.drivers.checks import KEY, MESSAGES, Checks

FIELDS = {
    instructor.Mode.TOOLS: "models here call no tools",
    instructor.Mode.JSON: "response_format:",
    instructor.Mode.JSON_SCHEMA: "response_format:",
}


class Bird(BaseModel):
    """What is asked for."""

    name: str


def main() -> int:
    """The command."""
    checks = Checks()
    client = openai.OpenAI(base_url=f"{checks.url}/v1", api_key=KEY, max_retries=0)
    for mode, field in FIELDS.items():
        made = instructor.from_openai(client, mode=mode)

        def ask(asks: object = made) -> object:
            return asks.chat.completions.create(  # type: ignore[attr-defined]  # made at run time
                model=checks.model, messages=MESSAGES, max_tokens=8, max_retries=0, response_model=Bird
            )

        checks.refuses(mode.name, ask, Exception, field)
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
