"""What a `--workload` may be: arrival processes, traces, lengths and shared prefixes, each a row of a table.

Makes lists of `Arrival` from specifications (`spec` is their grammar). Knows no cluster.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from dunlin.workload.traffic import arrival_processes as processes
from dunlin.workload.traffic.help_texts import DEFAULT_LENGTHS, HELP
from dunlin.workload.traffic.lengths import (
    FixedLengths,
    LengthSource,
    LognormalLengths,
    MixedLengths,
    UniformLengths,
    ZipfLengths,
    read_lengths,
)
from dunlin.workload.traffic.published import PUBLISHED
from dunlin.workload.traffic.rewriting import lengthen_longest, read_documents, sample_over
from dunlin.workload.traffic.scaling import cut_window, overlay, resample_to_rate, stretch_time
from dunlin.workload.traffic.spec_grammar import SpecCall, WorkloadError, parse_call, parse_part, split_mix
from dunlin.workload.traffic.trace import Arrival
from dunlin.workload.traffic.trace_formats import read_trace

MOST_REQUESTS = 10_000_000


def read_workload(text: str, seed: int = 0, duration_s: float | None = None) -> list[Arrival]:
    """The arrivals that a specification describes, by time. `duration_s` ends every part that says no end itself, and
    cuts those that last longer.

    Raises:
        WorkloadError: it is no specification, or describes no request.
        TraceError: a file it names cannot be used.
    """
    made = [_part(part, seed + index, duration_s) for index, part in enumerate(split_mix(text))]
    arrivals = made[0] if len(made) == 1 else overlay(made)
    if duration_s is not None:
        arrivals = [one for one in arrivals if one.at_s < duration_s]
    if not arrivals:
        raise WorkloadError(f"workload {text!r}: no request arrives; make the rate or the duration larger")
    return arrivals


def _part(text: str, seed: int, duration_s: float | None) -> list[Arrival]:
    kind, _, _ = text.partition(":")
    if kind.strip() not in KINDS:
        if kind.strip().isidentifier() and not _is_file(kind):
            known = ", ".join(KINDS)
            raise WorkloadError(
                f"workload {text!r}: {kind!r} is neither a kind ({known}) nor a file; you may say\n{HELP}"
            )
        kind, text = "trace", f"trace:{text}"
    call = parse_part(text)
    arrivals = KINDS[kind.strip()](call, seed, duration_s)
    if call.has("prefix"):
        arrivals = _with_prefixes(arrivals, parse_call(call.text("prefix"), text), seed)
    if call.has("class"):
        arrivals = [replace(one, label=call.text("class")) for one in arrivals]
    call.finish()
    return arrivals


def _is_file(text: str) -> bool:
    try:
        return Path(text.strip()).is_file()
    except (OSError, ValueError):
        return False


# --- arrival processes -----------------------------------------------------------------------------------------------


def _poisson(call: SpecCall, seed: int, duration_s: float | None) -> list[Arrival]:
    call.place("rate")
    return _at(call, processes.poisson_arrivals(call.number("rate"), seed), seed, duration_s)


def _gamma(call: SpecCall, seed: int, duration_s: float | None) -> list[Arrival]:
    call.place("rate", "cv")
    return _at(call, processes.gamma_arrivals(call.number("rate"), call.number("cv"), seed), seed, duration_s)


def _on_off(call: SpecCall, seed: int, duration_s: float | None) -> list[Arrival]:
    rates = call.number("on"), call.number("off", 0.0, above=False)
    times = processes.on_off_arrivals(*rates, call.number("on_s"), call.number("off_s", above=False), seed)
    return _at(call, times, seed, duration_s)


def _at(call: SpecCall, times: Iterator[float], seed: int, duration_s: float | None) -> list[Arrival]:
    random = Random(f"lengths {seed}")
    if call.has("documents"):
        questions = read_documents(Path(call.text("documents")))
        return [random.choice(questions).arrival(at_s) for at_s in _bounded(call, times, duration_s)]
    lengths = parse_lengths(call.text("lengths", DEFAULT_LENGTHS), call.source)
    return [Arrival(at_s, *lengths.draw(random)) for at_s in _bounded(call, times, duration_s)]


def _bounded(call: SpecCall, times: Iterator[float], duration_s: float | None) -> list[float]:
    if call.has("requests"):
        times = islice(times, call.whole("requests", highest=MOST_REQUESTS))
    elif not call.has("duration") and duration_s is None:
        raise call.wrong("it would never end: say duration=SECONDS or requests=N")
    if call.has("duration"):
        duration_s = call.number("duration")
    if duration_s is None:
        return list(times)
    found = processes.arrivals_until(islice(times, MOST_REQUESTS + 1), duration_s)
    if len(found) > MOST_REQUESTS:
        raise _too_many(call)
    return found


def _too_many(call: SpecCall) -> WorkloadError:
    return call.wrong(f"more than {MOST_REQUESTS} requests; make the rate or the duration smaller")


# --- traces ----------------------------------------------------------------------------------------------------------


def _trace(call: SpecCall, seed: int, duration_s: float | None) -> list[Arrival]:
    call.place("file")
    start_s, factor = call.number("from", 0.0, above=False), call.number("stretch", 1.0)
    last_s = call.number("duration") if call.has("duration") else duration_s
    stop_s = float("inf") if last_s is None else start_s + last_s / factor
    rows = read_trace(Path(call.text("file")), stop_s, one_more=True)
    arrivals = stretch_time(cut_window(rows, start_s, stop_s), factor)
    ended_s = arrivals[-1].at_s if arrivals and rows[-1].at_s < stop_s else None
    if not call.has("rewrite"):  # which makes classes of its own
        arrivals = _only(call, arrivals)
    if call.has("rate"):
        # A trace that is shorter than the duration is brought to the rate for as long as it lasts.
        span_s, rate = last_s if last_s is not None and ended_s is None else ended_s or 0.0, call.number("rate")
        if rate * span_s > MOST_REQUESTS:
            raise _too_many(call)
        arrivals = resample_to_rate(arrivals, rate, span_s, seed, call.number("jitter", 1.0, above=False))
    if call.has("sample"):
        # Of the whole trace: `from` and `duration` were applied before, where they were given.
        arrivals = sample_over(arrivals, call.number("sample"), call.number("over"), seed)
    if call.has("rewrite"):
        arrivals = _only(call, _rewritten(arrivals, parse_call(call.text("rewrite"), call.source), seed))
    if call.has("lengths"):
        lengths, random = parse_lengths(call.text("lengths"), call.source), Random(f"lengths {seed}")
        pairs = [lengths.draw(random) for _ in arrivals]
        arrivals = [Arrival(one.at_s, *pair, one.label, one.client) for one, pair in zip(arrivals, pairs, strict=True)]
    return arrivals


def _only(call: SpecCall, arrivals: list[Arrival]) -> list[Arrival]:
    return [one for one in arrivals if one.label == call.text("only")] if call.has("only") else arrivals


def _rewritten(arrivals: list[Arrival], call: SpecCall, seed: int) -> list[Arrival]:
    if call.name != "long":
        raise call.wrong(f"no rewrite {call.name!r}: there is long(share,low,high)")
    call.place("share", "low", "high")
    share, low = call.number("share", 0.05), call.whole("low", 100_000)
    high = call.whole("high", max(low, 500_000), lowest=low)
    call.finish()
    if share > 1:
        raise call.wrong(f"share must be a number above 0 and at most 1, not {share:g}")
    return lengthen_longest(arrivals, share, low, high, seed)


Kind = Callable[[SpecCall, int, float | None], list[Arrival]]
KINDS: dict[str, Kind] = {"poisson": _poisson, "gamma": _gamma, "onoff": _on_off, "trace": _trace}


# --- lengths ---------------------------------------------------------------------------------------------------------


def parse_lengths(text: str, source: str) -> LengthSource:
    """Lengths as a specification names them: a file or one of LENGTHS. Raises WorkloadError and TraceError."""
    name = text.partition("(")[0].strip()
    if text.strip() in PUBLISHED:
        return PUBLISHED[text.strip()].lengths
    if name not in LENGTHS:
        if not _is_file(text):
            known = ", ".join((*LENGTHS, *PUBLISHED))
            raise WorkloadError(f"workload {source!r}: lengths {text!r} are neither a file nor one of {known}")
        return read_lengths(Path(text.strip()))
    call = parse_call(text, source)
    made = LENGTHS[name](call)
    call.finish()
    return made


def _fixed(call: SpecCall) -> LengthSource:
    call.place("input", "output")
    return FixedLengths(call.whole("input"), call.whole("output"))


def _uniform(call: SpecCall) -> LengthSource:
    call.place("input", "output")
    return UniformLengths(_range(call, "input"), _range(call, "output"))


def _range(call: SpecCall, key: str) -> tuple[int, int]:
    low, dots, high = call.text(key).partition("..")
    digits = (low + high).isascii() and low.isdigit() and high.isdigit() and len(low + high) < 32
    if not (dots and digits and 1 <= int(low) <= int(high)):
        raise call.wrong(f"{key} of uniform must be LOW..HIGH with 1 <= LOW <= HIGH, not {call.text(key)!r}")
    return int(low), int(high)


def _lognormal(call: SpecCall) -> LengthSource:
    call.place("input", "output", "sigma", "most")
    means = call.number("input"), call.number("output")
    return LognormalLengths(*means, call.number("sigma", 1.0), call.whole("most", 1 << 20))


def _zipf(call: SpecCall) -> LengthSource:
    call.place("theta", "low", "high", "ratio")
    low = call.whole("low", lowest=2)
    return ZipfLengths(
        call.number("theta"), low, call.whole("high", lowest=low, highest=1 << 20), call.number("ratio", 4.0)
    )


def _mixed(call: SpecCall) -> LengthSource:
    if not call.values:
        raise call.wrong("mixed needs sources: mixed(a.csv,2*fixed(512,128))")
    weights, sources = [], []
    for value in call.values:
        weight, star, rest = value.partition("*")
        counted = SpecCall("mixed", call.source, named={"weight": weight if star else "1"})
        weights.append(counted.number("weight"))
        sources.append(parse_lengths(rest if star else value, call.source))
    return MixedLengths(sources, weights)


LENGTHS: dict[str, Callable[[SpecCall], LengthSource]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "zipf": _zipf,
    "mixed": _mixed,
}


# --- prefixes --------------------------------------------------------------------------------------------------------


def _with_prefixes(arrivals: list[Arrival], call: SpecCall, seed: int) -> list[Arrival]:
    """Every arrival begins with one of a few texts; its own part follows, its length stays."""
    if call.name != "shared":
        raise call.wrong(f"no prefix {call.name!r}: there is shared(count,tokens,theta)")
    call.place("count", "tokens", "theta")
    count, tokens, theta = call.whole("count"), call.whole("tokens"), call.number("theta", 1.0, above=False)
    call.finish()
    random, weights = Random(f"prefixes {seed}"), list(accumulate((rank + 1) ** -theta for rank in range(count)))
    names = random.choices(range(count), cum_weights=weights, k=len(arrivals))
    return [replace(one, blocks=(name,), block_tokens=tokens) for one, name in zip(arrivals, names, strict=True)]
