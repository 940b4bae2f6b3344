"""A small cluster at work, for watching: `make demo`, or `python examples/demo.py`.

Starts three instances of the built-in model on this machine, talks to them through the SDK, bursts load at them, kills
one in mid-stream, has the cluster explain what it did, and stops. Needs no other data and leaves nothing behind.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dunlin  # noqa: E402
from dunlin.cli.status import render  # noqa: E402
from dunlin.messages.fleet import FleetStatus  # noqa: E402
from dunlin.tether import tethered  # noqa: E402
from dunlin.workload.arrivals import on_off, until  # noqa: E402
from dunlin.workload.doors import SdkDoor  # noqa: E402
from dunlin.workload.generator import Load  # noqa: E402
from dunlin.workload.progress import bar  # noqa: E402
from dunlin.workload.prompts import make_jobs  # noqa: E402
from dunlin.workload.stats import report  # noqa: E402
from dunlin.workload.trace import Arrival  # noqa: E402

COMMAND = [sys.executable, "-m", "dunlin.cli.main"]
INSTANCES = 3
BURST_S = 20.0
OPENINGS = ("Once upon a time", "The sea was calm and", "Dear diary, today", "In the beginning there")


class Screen:
    """What the audience sees: bold headings, and blocks that are redrawn in place where that is possible."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        self._drawn = 0

    def heading(self, text: str) -> None:
        """The next act."""
        rule = "─" * max(0, self.width - len(text) - 4)
        print(f"\n{self._style('1;36', f'── {text} {rule}')}\n", flush=True)

    def note(self, text: str) -> None:
        """Words of the narrator."""
        print(self._style("2", textwrap.fill(text, self.width)), flush=True)

    def loud(self, text: str) -> str:
        """`text` so that nobody misses it."""
        return self._style("1;31", text)

    def draw(self, lines: Sequence[str]) -> None:
        """Show a block in place of the one drawn before; without a terminal nothing, until `settle`."""
        if self.live:
            up = f"\033[{self._drawn}A" if self._drawn else ""
            sys.stdout.write(up + "".join(f"\033[2K{line}\n" for line in lines))
            sys.stdout.flush()
            self._drawn = len(lines)

    def settle(self, lines: Sequence[str]) -> None:
        """The block as it stays."""
        if self.live:
            self.draw(lines)
        else:
            print("\n".join(lines), flush=True)
        self._drawn = 0

    def _style(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.live else text


class Cluster:
    """`dunlin up` in a process of its own and a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dunlin-demo-"))
        flags = ("--instances", str(INSTANCES), "--deterministic", "--http-port", "0", "--grpc-port", "0")
        with (self.folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen(
                tethered([*COMMAND, "up", *flags, "--data-dir", str(self.folder)], os.getpid()),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.grpc = ""

    def wait_ready(self) -> None:
        """Until the ready line. Raises RuntimeError with what the cluster said instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"the cluster did not start: {(self.folder / 'up.log').read_text().strip()}")
        self.grpc = dict(word.split("=", 1) for word in line.split()[1:])["grpc"]

    def stop(self) -> None:
        """SIGTERM, and wait: it leaves no process behind."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(screen: Screen) -> Cluster:
    """The curtain."""
    screen.heading("A cluster on this machine")
    screen.note(
        f"etcd, a dispatcher, a global manager, a monitor, a kvstore and {INSTANCES} instances, each with its engine "
        "in a process of its own. The built-in model has a real architecture and learned next to nothing: expect "
        "speech, not sense."
    )
    began_s = time.monotonic()
    cluster = Cluster()
    try:
        cluster.wait_ready()
    except BaseException:
        cluster.stop()
        raise
    print(f"\nready after {time.monotonic() - began_s:.1f} s\n")
    return cluster


async def chat(screen: Screen, client: dunlin.AsyncClient) -> None:
    """One conversation, as it comes."""
    screen.heading("A chat")
    question = "What would you like to talk about?"
    print(f"you     {question}\nmodel   ", end="", flush=True)
    async with aclosing(client.stream(messages=[("user", question)], max_tokens=48, seed=7)) as pieces:
        async for piece in pieces:
            print(piece.text.replace("\n", " "), end="", flush=True)
    print()


async def side_by_side(screen: Screen, client: dunlin.AsyncClient) -> None:
    """Several streams at once, each in its own lines."""
    screen.heading(f"{len(OPENINGS)} streams at once")
    texts = list(OPENINGS)

    async def follow(i: int) -> None:
        async with aclosing(
            client.stream(OPENINGS[i], max_tokens=64, ignore_eos=True, temperature=0.8, seed=i)
        ) as pieces:
            async for piece in pieces:
                texts[i] += piece.text
                screen.draw(panels(texts, screen.width))

    await asyncio.gather(*(follow(i) for i in range(len(texts))))
    screen.settle(panels(texts, screen.width))


def panels(texts: Sequence[str], width: int, height: int = 3) -> list[str]:
    """The last `height` lines of each text, one text below the other."""
    lines = []
    for number, text in enumerate(texts, start=1):
        wrapped = textwrap.wrap(" ".join(text.split()), width - 4)[-height:]
        wrapped += [""] * (height - len(wrapped))
        lines += [f"{number if i == 0 else ' '} │ {line}" for i, line in enumerate(wrapped)]
    return lines


async def burst(screen: Screen, client: dunlin.AsyncClient) -> None:
    """Load that comes in waves, and how the instances share it."""
    screen.heading(f"{BURST_S:g} seconds of bursty load")
    info = await client.info()
    arrivals = [Arrival(at_s, 64, 32) for at_s in until(on_off(16.0, 1.0, 3.0, 4.0, seed=5), BURST_S)]
    load = Load(make_jobs(arrivals, info.max_positions, info.vocabulary, seed=5), SdkDoor(client))
    running = asyncio.create_task(load.run())
    while not running.done():
        await asyncio.wait([running], timeout=0.15)
        screen.draw(board(load, await client.status()))
    found = report(await running)
    await asyncio.sleep(0.7)  # until the last reports of the instances are in
    screen.settle(board(load, await client.status()))
    print(
        f"\n{found.completed} of {found.requests} requests done, {found.errors} errors, "
        f"{found.output_tokens_per_s:.0f} tokens/s; first token after {found.ttft_s.p50 * 1000:.0f} ms (median), "
        f"{found.ttft_s.p99 * 1000:.0f} ms (99th percentile)"
    )


def board(load: Load, status: FleetStatus) -> list[str]:
    """One line for the load, one for each instance."""
    done = sum(record.end_s > 0 for record in load.records)
    now_s = min(load.now_s(), BURST_S)
    lines = [f"{bar(now_s / BURST_S, 20)} {now_s:4.1f} s   {len(load.records)} came, {done} done, {load.open} open"]
    for member in status.members:
        one = member.instance
        if one is not None:
            rows = "▮" * min(one.running, 40) + "▯" * min(one.waiting, 20)
            lines.append(f"{member.address.name:12} {one.running:3} running {one.tokens_total:7} tokens  {rows}")
    return lines


async def kill_in_mid_stream(screen: Screen, client: dunlin.AsyncClient) -> str:
    """One text, and its instance dies half way; the request's name."""
    screen.heading("An instance is killed in mid-stream")
    request, tokens, victim = "", 0, 0
    pauses: list[float] = []
    last_s = time.monotonic()
    text = client.stream("It was a dark and stormy night", max_tokens=96, ignore_eos=True, temperature=0.8, seed=11)
    async with aclosing(text) as pieces:
        async for piece in pieces:
            pauses.append(time.monotonic() - last_s)
            last_s = time.monotonic()
            request, tokens = piece.request or request, tokens + len(piece.tokens)
            print(piece.text.replace("\n", " "), end="", flush=True)
            if tokens >= 24 and not victim:
                name, victim = await holder(client, request)
                os.kill(victim, signal.SIGKILL)
                print(screen.loud(f" [kill -9 {victim}: {name}] "), end="", flush=True)
    print()
    screen.note(f"\nThe stream went on: {tokens} tokens came, the longest pause was {max(pauses[1:]):.2f} s.")
    return request


async def holder(client: dunlin.AsyncClient, request: str) -> tuple[str, int]:
    """Name and pid of the instance that holds a running request, from the recorded decisions."""
    from dunlin.messages.dispatch import Place
    from dunlin.wire.codec import decode

    recorded = (await client.explain(request)).reasons
    name = [one.to.name for one in recorded if isinstance(decode(one.kind, one.payload), Place)][-1]
    members = (await client.status()).members
    return name, next(member.pid for member in members if member.address.name == name)


async def acts(screen: Screen, cluster: Cluster) -> str:
    """The play, up to the kill; the request that survived it."""
    async with dunlin.AsyncClient(cluster.grpc) as client:
        print(render(await client.status()))
        await chat(screen, client)
        await side_by_side(screen, client)
        await burst(screen, client)
        request = await kill_in_mid_stream(screen, client)
    return request


def explain(screen: Screen, cluster: Cluster, request: str) -> None:
    """The command that tells what happened."""
    screen.heading(f"dunlin explain {request}")
    subprocess.run([*COMMAND, "explain", request, "--endpoint", cluster.grpc], cwd=ROOT, check=True)


def main() -> int:
    """Play it."""
    screen = Screen()
    began_s = time.monotonic()
    cluster = start(screen)
    try:
        explain(screen, cluster, asyncio.run(acts(screen, cluster)))
    finally:
        screen.heading("The end")
        cluster.stop()
    print(f"every process is gone again; {time.monotonic() - began_s:.0f} s in all\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
