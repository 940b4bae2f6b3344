"""Options that several subcommands share, and number types whose complaints say what is allowed."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

Subparsers = argparse._SubParsersAction
SET_HELP = "a setting by its name, as instance.scheduler.budget_tokens=1024; may be repeated (docs/settings.md)"


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """How to find the cluster that a command talks to."""
    parser.add_argument(
        "--endpoint",
        type=endpoints,
        metavar="HOST:PORT,…",
        help="the gRPC doors of the dispatchers (default: the cluster that runs in --data-dir)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="that of the cluster (default: $DUNLIN_DATA_DIR, else ~/.local/state/dunlin)",
    )
    parser.add_argument(
        "--tls-dir",
        type=Path,
        metavar="DIR",
        help="ca.pem, cert.pem and key.pem of a client (default: $DUNLIN_TLS_DIR, else the found cluster's own)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How the next token is drawn, and by which model, as far as chats and single texts share it."""
    parser.add_argument("--model", metavar="NAME", help="an adapter that is served (default: the model itself)")
    parser.add_argument("--temperature", type=number(0), metavar="T", help="0 is greedy (default: the server's)")
    parser.add_argument(
        "--top-p",
        type=number(0, above=True),
        metavar="P",
        help="draw from the likeliest tokens that make up this share",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="the same seed draws the same (default: a new one)"
    )


def add_settings(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """The settings of all services; flags that are short for one win."""
    parser.add_argument(
        "--config", action="append", default=[], type=Path, metavar="FILE", help="settings, as TOML; may be repeated"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET_HELP)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def endpoints(text: str) -> str:
    """An argparse type: `HOST:PORT`, several with commas. Without a port gRPC would ask port 443."""
    for one in text.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise argparse.ArgumentTypeError(f"{one.strip()!r} is not HOST:PORT (example: localhost:7070)")
    return text


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number from `lowest` to `highest`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < lowest or (highest is not None and value > highest):
            limit = f"{lowest} or more" if highest is None else f"between {lowest} and {highest}"
            raise argparse.ArgumentTypeError(f"{value} is not {limit}")
        return value

    return parse


def number(lowest: float, above: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number from `lowest` on, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < lowest or (above and value == lowest):
            raise argparse.ArgumentTypeError(f"{text} is not {'above' if above else 'at least'} {lowest:g}")
        return value

    return parse


port = whole_number(0, 65535)
