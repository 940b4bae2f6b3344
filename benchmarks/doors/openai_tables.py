"""Write the tables of docs/openai.md anew from the declaration of the fields that the HTTP door takes.

    python -m benchmarks.doors.openai_tables

A test compares them, so that the page cannot fall behind the code.
"""

import json
import sys
from pathlib import Path

from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.schemas import Json

PAGE = Path(__file__).parents[2] / "docs/openai.md"
TABLES = {"/v1/completions": COMPLETION_FIELDS, "/v1/chat/completions": CHAT_FIELDS}
FATES = {
    FieldSupport.HONOURED: "honoured",
    FieldSupport.ONLY: "that value only",
    FieldSupport.NO_EFFECT: "no effect",
    FieldSupport.REFUSED: "refused",
}


def page_of(text: str) -> str:
    """The page with every table between its marks made anew."""
    for path, fields in TABLES.items():
        before, mark, rest = text.partition(f"<!-- fields of {path} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{mark}\n{table_of(fields)}\n{end}{after}"
    return text


def table_of(fields: dict[str, RequestField]) -> str:
    """One row for each field."""
    rows = ["| field | | values | what happens |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {FATES[one.support]} | {spelled(one.schema)} | {one.description} |"
        for name, one in fields.items()
    ]
    return "\n".join(rows) + "\n"


def spelled(schema: Json) -> str:
    """The values that a schema allows, in words."""
    match schema:
        case {"enum": values}:
            return ", ".join(f"`{json.dumps(value)}`" for value in values)
        case {"anyOf": kinds}:
            return "; or ".join(map(spelled, kinds))
        case {"type": "array", "items": items}:
            least, most = schema.get("minItems", 0), schema.get("maxItems", "")
            count = f" of {least} to {most}" if most else f" of at least {least}" if least else ""
            return f"list{count}: {spelled(items)}"
        case {"type": "integer" | "number" as kind, **limits}:
            return f"{kind}, {_limits(limits)}"
        case {"type": "string", "minLength": least, "maxLength": most}:
            return f"string of {least} to {most} characters"
        case {"additionalProperties": {} as values, "maxProperties": most}:
            return f"object of at most {most} token ids: {spelled(values)}"
        case {"type": str(kind)}:
            return kind
    return ""


def _limits(limits: Json) -> str:
    least = f"above {limits['exclusiveMinimum']:g}" if "exclusiveMinimum" in limits else _number(limits["minimum"])
    return f"{least} to {_number(limits['maximum'])}"


def _number(value: float) -> str:
    """Powers of two by name: 9223372036854775807 is hard to read."""
    for bits in (31, 63):
        if abs(value) >= (1 << bits) - 1 and abs(value) <= 1 << bits:
            return f"{'-' if value < 0 else ''}2^{bits}{' - 1' if value > 0 else ''}"
    return f"{value:g}"


def main() -> int:
    """The command."""
    PAGE.write_text(page_of(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
