"""A request in the words of OpenTelemetry's conventions for generative AI (`gen_ai.*`), which viewers look for. Pure.

They stand beside this project's own attributes (`dunlin.*`), on the request's root span alone.
"""

from dunlin.messages.dispatch import Place
from dunlin.messages.lifecycle import CallOrigin, Closed
from dunlin.messages.types import FINISH_ERRORS, FinishReason

PROVIDER = "dunlin"
RESPONSE_ID = "gen_ai.response.id"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
UNKNOWN = "request"
"""The name of a request's span where its operation is not known."""
FINISHES = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: "cancelled"}
OTHER_ERROR = "_OTHER"
"""The conventions' word for an error that has no type of its own."""

Attributes = dict[str, str | int | float | tuple[str, ...]]


def span_name(origin: CallOrigin) -> str:
    """The span's name of a request that was taken, such as `chat llama`."""
    return f"{origin.operation} {origin.model}" if origin.operation else UNKNOWN


def request_attributes(origin: CallOrigin) -> Attributes:
    """Attributes of every call that asks for generation."""
    found: Attributes = {
        "gen_ai.operation.name": origin.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.system": PROVIDER,  # its name before 1.37, which viewers still read
        "gen_ai.request.model": origin.model,
        "dunlin.door": origin.door,
        "dunlin.tenant": origin.tenant,
    }
    host, _, port = origin.server.rpartition(":")
    if port.isdecimal():
        found |= {"server.address": host.strip("[]"), "server.port": int(port)}
    return {name: value for name, value in found.items() if value != ""}


def admission_attributes(origin: CallOrigin) -> Attributes:
    """Attributes of an admitted call: it is answered by the model that it named."""
    return request_attributes(origin) | {"gen_ai.response.model": origin.model, "gen_ai.output.type": "text"}


def sampling_attributes(place: Place) -> Attributes:
    """Attributes of a placed request: its sampling parameters."""
    sampling = place.sampling
    return {
        "gen_ai.usage.input_tokens": place.prompt_tokens,
        "gen_ai.request.max_tokens": place.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.seed": sampling.seed,
        "dunlin.class": place.request_class.name.lower(),
    }


def completion_attributes(message: Closed) -> Attributes:
    """Attributes of a request's end."""
    found: Attributes = {"gen_ai.usage.output_tokens": message.tokens}
    if message.finish in FINISHES:
        found["gen_ai.response.finish_reasons"] = (FINISHES[message.finish],)
    else:
        found["gen_ai.response.finish_reasons"] = ("error",)
        found[ERROR_TYPE] = FINISH_ERRORS.get(message.finish, OTHER_ERROR)
    return found


def rejection_attributes(message: Closed) -> Attributes:
    """Attributes of a refused call."""
    found = request_attributes(message.origin) if message.origin is not None else {}
    return found | {ERROR_TYPE: message.error} if message.error else found
