"""What messages cost on the wire: `python -m benchmarks.cores.codec_cost [--rows 64] [--prompt 8192] [--json]`.

Side by side in one run: our columns in `bytes` fields against packed `repeated` fields of the same numbers.
"""

import argparse
import json
import statistics
import timeit
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dunlin.effects import Address
from dunlin.messages.dispatch import Place, Tokens
from dunlin.messages.types import FinishReason, Header, f32, i8, i32, i64
from dunlin.wire.envelopes import DISPATCH

HEADER = Header(Address("instance", "instance-0", 7))


def cost_us(call: Callable[[], object], repeats: int = 7) -> float:
    """The median over `repeats` of one call's time in microseconds."""
    timer = timeit.Timer(call)
    number, _ = timer.autorange()
    number = max(1, number // 5)
    return statistics.median(taken / number for taken in timer.repeat(repeats, number)) * 1e6


def repeated_twin() -> Any:
    """A message with one packed repeated int64 field, the way not taken."""
    file = descriptor_pb2.FileDescriptorProto(name="repeated.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Column")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="items", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Column"))


def measure(rows: int, prompt: int) -> dict[str, float]:
    """Microseconds per message: a step's tokens for `rows` rows, and dispatching a prompt of `prompt` tokens."""
    column = i64(range(rows))
    tokens = Tokens(
        column, i32([1] * rows), column, i32(range(rows)), f32([0.5] * rows), i8([FinishReason.RUNNING] * rows)
    )
    place = Place(1, 1, i32(range(prompt)), prompt, 100)
    frame = DISPATCH.event.encode(HEADER, tokens)
    placed = DISPATCH.command.encode(HEADER, place)
    twin = repeated_twin()
    packed = twin(items=range(prompt)).SerializeToString()
    return {
        "tokens_encode_us": cost_us(lambda: DISPATCH.event.encode(HEADER, tokens)),
        "tokens_decode_us": cost_us(lambda: DISPATCH.event.decode(frame)),
        "place_encode_us": cost_us(lambda: DISPATCH.command.encode(HEADER, place)),
        "place_decode_us": cost_us(lambda: DISPATCH.command.decode(placed)),
        "repeated_encode_us": cost_us(lambda: twin(items=place.tokens).SerializeToString()),
        "repeated_decode_us": cost_us(lambda: list(twin.FromString(packed).items)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64, help="rows in a step")
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of a prompt")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.rows, options.prompt)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.rows} rows a step, a prompt of {options.prompt} tokens; microseconds, median of 7")
    for name, value in figures.items():
        print(f"  {name:22} {value:9.2f}")


if __name__ == "__main__":
    main()
