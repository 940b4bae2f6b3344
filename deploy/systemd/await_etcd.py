"""Waits until etcd has a leader, before a service starts: `await_etcd.py HOST:PORT[,HOST:PORT...] SECONDS [TLS_DIR]`.

Any of the endpoints will do. TLS_DIR holds ca.pem, cert.pem and key.pem; without it, or if it is empty, etcd is asked
over plain HTTP. Ends with 0 when one answers, else with 1, which systemd tries again. Needs Python alone.
"""

import json
import ssl
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

POLL_S = 0.5
ANSWER_S = 2.0


def tls_of(directory: str) -> ssl.SSLContext | None:
    """For a client with these certificates; None without a directory."""
    if not directory:
        return None
    folder = Path(directory)
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def leads(endpoint: str, tls: ssl.SSLContext | None) -> str:
    """Empty when the etcd at `endpoint` is healthy, else what is wrong."""
    # No proxy: the same way as the services go.
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)]
    opener = urllib.request.build_opener(*handlers)
    url = f"{'https' if tls else 'http'}://{endpoint.rpartition('//')[2]}/health"
    try:
        with opener.open(url, timeout=ANSWER_S) as answer:
            said = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{endpoint}: {error}"
    healthy = isinstance(said, dict) and said.get("health") == "true"
    return "" if healthy else f"{endpoint}: {said}"


def wait(endpoints: Sequence[str], limit_s: float, tls: ssl.SSLContext | None) -> list[str]:
    """Ask in turn until one is healthy or `limit_s` are over; what was wrong with each, nothing if one is healthy."""
    deadline_s = time.monotonic() + limit_s
    while True:
        problems = [leads(endpoint, tls) for endpoint in endpoints]
        if not all(problems):
            return []
        if time.monotonic() >= deadline_s:
            return problems
        time.sleep(POLL_S)


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code."""
    endpoints = [entry.strip() for entry in arguments[0].split(",") if entry.strip()] if arguments else []
    if len(arguments) not in (2, 3) or not endpoints:
        print("usage: await_etcd.py HOST:PORT[,HOST:PORT...] SECONDS [TLS_DIR] (is DUNLIN_ETCD set?)", file=sys.stderr)
        return 1
    try:
        tls = tls_of(arguments[2]) if len(arguments) == 3 else None
    except OSError as error:  # ssl.SSLError is one too
        print(f"cannot use the certificates in {arguments[2]}: {error} (is DUNLIN_ETCD_TLS right?)", file=sys.stderr)
        return 1
    problems = wait(endpoints, float(arguments[1]), tls)
    if problems:
        print(f"no etcd after {arguments[1]} s: {'; '.join(problems)}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
