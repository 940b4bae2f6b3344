"""Waits until etcd has a leader, before a service starts: `await_etcd.py HOST:PORT[,HOST:PORT...] SECONDS`.

Any of the endpoints will do. Ends with 0 when one answers, else with 1, which systemd tries again. Needs Python alone.
"""

import json
import sys
import time
import urllib.request
from collections.abc import Sequence

POLL_S = 0.5
ANSWER_S = 2.0


def leads(endpoint: str) -> str:
    """Empty when the etcd at `endpoint` is healthy, else what is wrong."""
    # No proxy: the same way as the services go.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{endpoint.removeprefix('http://')}/health", timeout=ANSWER_S) as answer:
            said = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{endpoint}: {error}"
    healthy = isinstance(said, dict) and said.get("health") == "true"
    return "" if healthy else f"{endpoint}: {said}"


def wait(endpoints: Sequence[str], limit_s: float) -> list[str]:
    """Ask in turn until one is healthy or `limit_s` are over; what was wrong with each, nothing if one is healthy."""
    deadline_s = time.monotonic() + limit_s
    while True:
        problems = [leads(endpoint) for endpoint in endpoints]
        if not all(problems):
            return []
        if time.monotonic() >= deadline_s:
            return problems
        time.sleep(POLL_S)


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code."""
    endpoints = [entry.strip() for entry in arguments[0].split(",") if entry.strip()] if arguments else []
    if len(arguments) != 2 or not endpoints:
        print("usage: await_etcd.py HOST:PORT[,HOST:PORT...] SECONDS (is DUNLIN_ETCD set?)", file=sys.stderr)
        return 1
    problems = wait(endpoints, float(arguments[1]))
    if problems:
        print(f"no etcd after {arguments[1]} s: {'; '.join(problems)}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
