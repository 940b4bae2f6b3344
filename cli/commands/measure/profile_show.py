"""`dunlin profile --show`: what is known of a device, a profile or LoongServe's strategies; nothing is measured."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.common.errors import OK, USAGE, CliError
from cli.common.output import as_json, table

if TYPE_CHECKING:
    from dunlin.cost.engine_timing import EngineTiming
    from dunlin.cost.models import BatchCounts, StepTimes
    from dunlin.cost.strategies import Strategies

DEFAULT_SHAPE = "llama-3-8b"


def show(arguments: argparse.Namespace) -> int:
    """Print it. Raises CliError for what is not known."""
    from dunlin.cost.strategy_files import find_strategies, known_strategies

    name: str = arguments.show
    if name.lower() in known_strategies():
        found = find_strategies(name)
        print(as_json(found.as_json()) if arguments.json else _strategies(found))
        return OK
    shape, tp = arguments.model_shape or _shape(name), arguments.tp
    timing = _timing(name, shape, tp)
    print(as_json(_plain(name, shape, tp, timing)) if arguments.json else _text(name, shape, tp, timing))
    return OK


def _shape(name: str) -> str:
    """What is shown where no model is named: the latest one of a store."""
    if not Path(name).is_file():
        return DEFAULT_SHAPE
    from dunlin.cost.store import ProfileStore, StoreError

    try:
        with ProfileStore(Path(name)) as store:
            keys = store.keys()
        return keys[0].model if keys else DEFAULT_SHAPE
    except StoreError as error:
        raise CliError(str(error), USAGE) from None


def _timing(name: str, shape: str, tp: int) -> "EngineTiming":
    from dunlin.cost.strategy_files import known_strategies
    from dunlin.cost.timing_loader import load_timing

    try:
        return load_timing(name, shape, tp)
    except ValueError as error:
        named = f"strategies: {', '.join(known_strategies())}" if not Path(name).is_file() else ""
        raise CliError("; ".join(filter(None, (str(error), named))), USAGE) from None


def _plain(name: str, shape: str, tp: int, timing: "EngineTiming") -> dict[str, Any]:
    return {
        "device": name,
        "shape": shape,
        "tp": tp,
        "slots": timing.slots,
        "kv_bytes_per_token": timing.kv_bytes_per_token,
        "load_s": timing.load_s,
        "compute_bound_tokens": compute_bound_tokens_of(timing.step),
        "steps_s": {step: timing.step_s(batch) for step, batch in typical_steps()},
        "quality": timing.quality,
        "note": coarse_profile_note(name, timing),
    }


def _text(name: str, shape: str, tp: int, timing: "EngineTiming") -> str:
    return "\n".join(
        [
            f"{shape} on {f'{tp} x ' if tp > 1 else ''}{name}: {timing.slots:,} slots of "
            f"{timing.kv_bytes_per_token:,} bytes, loaded in {timing.load_s:.0f} s",
            compute_bound_text(timing.step),
            "",
            table(("step", "ms"), [(step, f"{timing.step_s(batch) * 1e3:.2f}") for step, batch in typical_steps()]),
            *(["", said] if (said := coarse_profile_note(name, timing)) else []),
        ]
    )


def coarse_profile_note(device: str, timing: "EngineTiming") -> str:
    """One line about a profile that is coarse; empty of a good one, and of a device that ships."""
    from dunlin.cost.profile_quality import quality_note

    return quality_note(device, timing.quality) if Path(device).is_file() else ""


def compute_bound_tokens_of(step: "StepTimes") -> int | None:
    """The tokens at which a step turns compute-bound; None where it never does, or its model cannot tell."""
    from dunlin.cost.models import ComposedModel, StepModel, compute_bound_tokens

    return compute_bound_tokens(step.tokens, step.fixed_s) if isinstance(step, ComposedModel | StepModel) else None


def compute_bound_text(step: "StepTimes") -> str:
    """One line of it."""
    found = compute_bound_tokens_of(step)
    if found is None:
        return "no number of tokens makes a step compute-bound"
    return f"a step turns from memory- to compute-bound at about {found:,} tokens"


def _strategies(found: "Strategies") -> str:
    rows = []
    for strategy, model in sorted(found.prefill.items()):
        prices = (model.fixed_s * 1e3, model.token_s * 1e6, model.square_s * 1e9)
        measured = f"{model.points} points, {model.least_tokens:,} to {model.most_tokens:,} tokens"
        rows.append((str(strategy), *(f"{price:.4g}" for price in prices), measured))
    overhead = asdict(found.overhead)
    return "\n".join(
        [
            f"{found.title} ({found.shape}): a prefill takes fixed + token x sum(length) + square x sum(length^2)",
            table(("strategy", "fixed ms", "token us", "square ns", "fitted to"), rows),
            "the engine adds to its kernels "
            f"{overhead['step_s'] * 1e3:.2f} ms a step, and {overhead['prefill_s'] * 1e3:.2f} ms to one with a prompt",
        ]
    )


def typical_steps() -> "list[tuple[str, BatchCounts]]":
    """Steps of which a person has an idea."""
    from dunlin.cost.models import BatchCounts

    one, many, drawn, prompt, mixed = (BatchCounts() for _ in range(5))
    one.add_decode(200)
    prompt.add_prefill(256)
    mixed.add_prefill(240)
    for _ in range(16):
        many.add_decode(200)
        drawn.add_decode(200)
        mixed.add_decode(200)
    drawn.sampled_rows = drawn.decode_rows
    return [
        ("1 row at context 200", one),
        ("16 rows at context 200", many),
        ("the same with a temperature", drawn),
        ("a prompt of 256 tokens", prompt),
        ("16 rows and 240 prompt tokens", mixed),
    ]
