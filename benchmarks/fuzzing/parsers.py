"""Every parser that bytes from outside reach, as a function of bytes: it returns, or raises what it promises to raise.

Anything else that comes out is a defect. What a parser accepts is used once more where that can show a contradiction.
Knows no fuzzer.
"""

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzzing.packed_weights import formats
from dunlin.auth.tenants import Tenant, TenantsError, format_tenants, hash_key, parse_tenants
from dunlin.effects import Address
from dunlin.engine.decoder.loading.weights import Checkpoint
from dunlin.engine.process.frames import FrameError, FrameReader, frame
from dunlin.limits import InvalidField
from dunlin.membership.members import MemberRecord
from dunlin.messages.dispatch import Tokens
from dunlin.messages.door import Quota
from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import Header, f32, i8, i32, i64
from dunlin.model.config import parse_config
from dunlin.model.errors import ModelError
from dunlin.wire.codec import CodecError, decode, encode
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT, STREAM_PROTOCOLS
from dunlin.wire.streams.stream import identity_metadata, read_identities
from dunlin.workload.traffic.trace import TraceError
from dunlin.workload.traffic.trace_formats import parse_trace
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.openai.request import parse_chat, parse_completion
from services.dispatcher.doors.preprocess.grpc_request import parse_generate
from services.dispatcher.doors.preprocess.preprocessor import read_json

ENVELOPES = [side for one in STREAM_PROTOCOLS for side in (one.command, one.event)] + [ENGINE_COMMAND, ENGINE_EVENT]
HEADER = Header(Address("dispatcher", "d", 7))


@dataclass(frozen=True, slots=True)
class FuzzedParser:
    """`parse_tenants` takes any bytes; `seeds` are some that it accepts."""

    parse: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def wire(data: bytes) -> None:
    """A frame of any conversation; what is understood is said again and understood the same."""
    if not data:
        return
    envelope = ENVELOPES[data[0] % len(ENVELOPES)]
    try:
        header, message = envelope.decode(data[1:])
    except CodecError:
        return
    again = envelope.encode(header, message)
    assert envelope.encode(*envelope.decode(again)) == again


def engine_frames(data: bytes) -> None:
    """The engine's socket, in pieces of every size."""
    reader = FrameReader()
    size = data[0] % 7 + 1 if data else 1
    try:
        for start in range(1, len(data), size):
            for _ in reader.feed(data[start : start + size]):
                pass
    except FrameError:
        return


def safetensors(data: bytes) -> None:
    """A checkpoint's file; the tensors that it names can be read."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder)
        (path / "model.safetensors").write_bytes(data)
        try:
            checkpoint = Checkpoint(path)
        except ModelError:
            return
        try:
            for name in list(checkpoint.entries)[:4]:
                checkpoint.tensor(name).sum()
        except ModelError:
            pass
        finally:
            checkpoint.close()


def model_config(data: bytes) -> None:
    """A checkpoint's config.json."""
    values = _json(data)
    if isinstance(values, dict):
        with suppress(ModelError):
            parse_config(values, Path("config.json"))


def trace(data: bytes) -> None:
    """A workload trace."""
    with suppress(TraceError):
        for _ in parse_trace(io.StringIO(data.decode(errors="replace"), newline=""), "trace"):
            pass


def openai_completion(data: bytes) -> None:
    """The body of /v1/completions."""
    with suppress(DoorError, InvalidField):
        parse_completion(read_json(data))


def openai_chat(data: bytes) -> None:
    """The body of /v1/chat/completions."""
    with suppress(DoorError, InvalidField):
        parse_chat(read_json(data))


def grpc_request(data: bytes) -> None:
    """A GenerateRequest at the public door, and its settings."""
    with suppress(DoorError, InvalidField):
        parse_generate(data)


def member_record(data: bytes) -> None:
    """A registration out of etcd."""
    with suppress(ValueError):
        record = MemberRecord.decode(data)
        assert MemberRecord.decode(record.encode()) == record


def stream_identity(data: bytes) -> None:
    """The metadata with which a stream begins."""
    pairs = [tuple(line.split(b"=", 1)) for line in data.split(b"\n") if b"=" in line]
    with suppress(ValueError):
        read_identities([(key.decode(errors="replace"), value.decode(errors="replace")) for key, value in pairs])


def tenants(data: bytes) -> None:
    """The file of tenants, as JSON and as TOML; what is taken is written and read again."""
    for is_toml in (False, True):
        with suppress(TenantsError):
            found = parse_tenants(data, is_toml)
            assert parse_tenants(format_tenants(found).encode(), is_toml=False) == found


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _seeds_of_wire() -> Iterator[bytes]:
    tokens = Tokens(i64((3,)), i32((1,)), i64((9,)), i32((5,)), f32((-0.5,)), i8((0,)))
    for index, envelope in enumerate(ENVELOPES):
        for kind in envelope.kinds:
            message = tokens if kind is Tokens else decode(kind.__name__, b"")
            yield bytes([index]) + envelope.encode(HEADER, message)


def _metadata() -> bytes:
    pairs = identity_metadata(Address("dispatcher", "d", 7), Address("instance", "i", 8))
    return "\n".join(f"{key}={value!s}" for key, value in pairs if isinstance(value, str)).encode()


COMPLETION = b'{"model":"m","prompt":"x","max_tokens":2,"temperature":0.5,"stop":["a"],"logit_bias":{"5":1.0}}'
CHAT = b'{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"stream":true,"stream_options":{}}'
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 99,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
}  # fmt: skip
TENANTS = b"[tenants.a]\nkeys = []\nrunning = 3\n"
HEADER_JSON = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
RECORD = MemberRecord("instance", "i", "node", "127.0.0.1:5", os.getpid())
REQUEST = GenerateRequest(messages=(ChatMessage("user", "x"),), max_tokens=3, stop=("a",), stop_token_ids=i32((1,)))


def _configs() -> Iterator[bytes]:
    yield json.dumps(CONFIG).encode()
    for form in formats().values():
        yield json.dumps({**CONFIG, form.key: form.config}).encode()


PARSERS: dict[str, FuzzedParser] = {
    "wire": FuzzedParser(wire, tuple(_seeds_of_wire())),
    "engine-frames": FuzzedParser(engine_frames, (b"\x03" + frame(b"abc") + frame(b""),)),
    "safetensors": FuzzedParser(safetensors, (len(HEADER_JSON).to_bytes(8, "little") + HEADER_JSON + bytes(8),)),
    "model-config": FuzzedParser(model_config, tuple(_configs())),
    "trace": FuzzedParser(trace, (b"arrival_s,input_tokens,output_tokens\n0.5,10,3\n1,2,3\n",)),
    "openai-completion": FuzzedParser(openai_completion, (COMPLETION,)),
    "openai-chat": FuzzedParser(openai_chat, (CHAT,)),
    "grpc-request": FuzzedParser(grpc_request, (encode(REQUEST),)),
    "member-record": FuzzedParser(member_record, (RECORD.encode(),)),
    "tenants": FuzzedParser(
        tenants, (format_tenants((Tenant("a", (hash_key("k"),), Quota("a", 1, 2, 3, 4)),)).encode(), TENANTS)
    ),
    "stream-identity": FuzzedParser(stream_identity, (_metadata(),)),
}
