"""A small cluster at work, for watching: `make demo`, or `python examples/demo.py`.

Starts three instances of the built-in model on this machine, talks to them through the SDK and bursts load at them.
Then one text gets into trouble: its instance is killed, its next engine is killed, its instance is drained. It is
compared with the same text undisturbed, and the cluster explains what it did. Needs no other data and leaves nothing
behind.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dunlin  # noqa: E402
from cli.commands.operate.status import render  # noqa: E402
from cli.launch.cluster_process import ClusterError, ClusterProcess  # noqa: E402
from cli.launch.cluster_process import dunlin_command as command  # noqa: E402
from dunlin.effects import Address  # noqa: E402
from dunlin.messages.dispatch import Place  # noqa: E402
from dunlin.messages.fleet import InstanceReport, MemberStatus  # noqa: E402
from dunlin.wire.codec import decode  # noqa: E402
from dunlin.workload.loadgen.load_generator import LoadGenerator  # noqa: E402
from dunlin.workload.loadgen.stats import summarize  # noqa: E402
from dunlin.workload.loadgen.targets import SdkTarget  # noqa: E402
from dunlin.workload.traffic.arrival_processes import arrivals_until, on_off_arrivals  # noqa: E402
from dunlin.workload.traffic.prompts import make_jobs  # noqa: E402
from dunlin.workload.traffic.trace import Arrival  # noqa: E402
from examples.demo_screen import DemoScreen, board, panels  # noqa: E402
from examples.demo_story import NO_END, StoryStream, request_story  # noqa: E402

INSTANCES = 3
BURST_S = 8.0
OPENINGS = ("Once upon a time", "One sunny morning,", "It was a rainy day,", "Anna lived in a small")
QUESTIONS = ("Hello!", "Who are you?", "What is the capital of France?", "What is a token?")
STORY_TOKENS = 8000
"""More than a reader of the demo waits for."""
ENGINE_GRACE_S = 120.0
"""The next engine is waited for: on a busy machine the one that stands by may not be loaded when it is needed, and the
usual grace would give the story to another instance.
"""
REPORT_S = 0.7
"""Until the last reports of the instances are in, on a machine that has a core to spare."""
REPORT_MOST_S = 20.0
"""What is to be told is waited for so long; then the reports that are there are told."""


def start(screen: DemoScreen) -> ClusterProcess:
    """The curtain. Raises ClusterError."""
    screen.heading("A cluster on this machine")
    screen.note(
        f"etcd, a dispatcher, a global manager, a monitor, a kvstore and {INSTANCES} instances, each with its engine "
        "in a process of its own. The model, builtin:chat, is very small and was trained for half an hour: it speaks "
        "short English sentences, which must not be trusted."
    )
    began_s = time.monotonic()
    cluster = ClusterProcess(
        "--instances",
        str(INSTANCES),
        "--model",
        "builtin:chat",
        "--deterministic",
        "--set",
        f"instance.recovery.engine_grace_s={ENGINE_GRACE_S:g}",
    )
    cluster.start()
    print(f"\nready after {time.monotonic() - began_s:.1f} s\n")
    return cluster


async def chat(screen: DemoScreen, client: dunlin.AsyncClient) -> None:
    """One conversation, as it comes."""
    screen.heading("A chat")
    messages: list[tuple[str, str]] = []
    for question in QUESTIONS:
        messages.append(("user", question))
        print(f"you     {question}\nmodel   ", end="", flush=True)
        answer = ""
        async with aclosing(client.stream(messages=messages, max_tokens=96, temperature=0.0)) as pieces:
            async for piece in pieces:
                answer += piece.text
                print(piece.text.replace("\n", " "), end="", flush=True)
        messages.append(("assistant", answer))
        print()


async def side_by_side(screen: DemoScreen, client: dunlin.AsyncClient) -> None:
    """Several streams at once, each in its own lines."""
    screen.heading(f"{len(OPENINGS)} streams at once")
    texts = list(OPENINGS)

    async def follow(i: int) -> None:
        async with aclosing(
            client.stream(OPENINGS[i], max_tokens=64, bad_words=NO_END, temperature=0.5, seed=i)
        ) as pieces:
            async for piece in pieces:
                texts[i] += piece.text
                screen.draw(panels(texts, screen.width))

    await asyncio.gather(*(follow(i) for i in range(len(texts))))
    screen.settle(panels(texts, screen.width))


async def burst(screen: DemoScreen, client: dunlin.AsyncClient) -> None:
    """Load that comes in waves, and how the instances share it."""
    screen.heading(f"{BURST_S:g} seconds of bursty load")
    info = await client.info()
    arrivals = [Arrival(at_s, 64, 32) for at_s in arrivals_until(on_off_arrivals(16.0, 1.0, 3.0, 4.0, seed=5), BURST_S)]
    load = LoadGenerator(make_jobs(arrivals, info.max_positions, info.vocabulary, seed=5), SdkTarget(client))
    running = asyncio.create_task(load.run())
    while not running.done():
        await asyncio.wait([running], timeout=0.15)
        screen.draw(board(load, BURST_S, await client.status()))
    found = summarize(await running)
    await asyncio.sleep(REPORT_S)
    screen.settle(board(load, BURST_S, await client.status()))
    print(
        f"\n{found.completed} of {found.requests} requests done, {found.errors} errors, "
        f"{found.output_tokens_per_s:.0f} tokens/s; first token after {found.ttft_s.p50 * 1000:.0f} ms (median), "
        f"{found.ttft_s.p99 * 1000:.0f} ms (99th percentile)"
    )


async def kill_instance(screen: DemoScreen, client: dunlin.AsyncClient, story: StoryStream) -> None:
    """Its instance dies: another one takes what the host tier kept."""
    screen.heading("An instance is killed in mid-stream")
    await story.show(64)
    holder = await holder_of(client, story.request)
    at_stake = story.prompt_tokens + len(story.tokens)
    os.kill(holder.pid, signal.SIGKILL)
    story.interrupt(f"kill -9 {holder.pid}: {holder.address.name}")
    await story.show(64)
    next_one = (await holder_of(client, story.request, lost=holder.address)).address.name
    now = await reports_when(client, lambda now: next_one in now and now[next_one].claimed_tokens_total > 0)
    claimed = sum(one.claimed_tokens_total for one in now.values())
    story.note(
        f"The longest pause was {max(story.pauses):.2f} s. {holder.address.name} had computed {at_stake} tokens of it, "
        f"prompt and answer; {next_one} took {claimed} of them from the host tier, where they are copied as they come, "
        "and computed the rest again."
    )


async def kill_engine(screen: DemoScreen, client: dunlin.AsyncClient, story: StoryStream) -> None:
    """The engine of its instance dies, and the slab does not."""
    screen.heading("An engine is killed in mid-stream")
    print("… ", end="")
    await story.show(32)
    holder = await holder_of(client, story.request)
    name, before = holder.address.name, report_of(holder)
    os.kill(before.engine_pid, signal.SIGKILL)
    story.interrupt(f"kill -9 {before.engine_pid}: the engine of {name}")
    await story.show(64)
    now = (await reports_when(client, lambda now: now[name].ready and now[name].engine_pid != before.engine_pid))[name]
    story.note(
        f"The longest pause was {max(story.pauses):.2f} s. {name} has another engine (pid {now.engine_pid}), which "
        f"found {now.revived_tokens_total - before.revived_tokens_total} tokens in the memory that the dead one left; "
        f"{now.recomputed_tokens_total - before.recomputed_tokens_total} were computed again."
    )


async def drain(screen: DemoScreen, client: dunlin.AsyncClient, story: StoryStream) -> None:
    """Its instance is emptied for repair, with the story and others on it."""
    screen.heading("An instance is drained")
    others = [asyncio.create_task(client.generate(text, max_tokens=128, ignore_eos=True)) for text in OPENINGS]
    print("… ", end="")
    await story.show(32)
    holder = await holder_of(client, story.request)
    name = holder.address.name
    began_s = time.monotonic()
    await client.drain(name)
    story.interrupt(f"dunlin drain {name}")
    emptied = asyncio.create_task(until_empty(client, name))
    await story.show(64)
    took_s = await emptied - began_s
    failed = [one for one in await asyncio.gather(*others, return_exceptions=True) if isinstance(one, BaseException)]
    moved = (await reports(client))[name].migrations_total - report_of(holder).migrations_total
    await client.drain(name, undo=True)
    story.note(
        f"{name} was empty after {took_s:.1f} s: {moved} of its streams moved on while they ran. The longest pause of "
        f"this one was {max(story.pauses):.2f} s; of {len(others) + 1} streams {len(failed)} failed."
    )


async def until_empty(client: dunlin.AsyncClient, name: str) -> float:
    """When a draining instance has nothing left."""
    while True:
        await asyncio.sleep(0.1)
        one = (await reports(client))[name]
        if one.draining and one.running + one.waiting == 0:
            return time.monotonic()


async def compare(screen: DemoScreen, client: dunlin.AsyncClient, story: StoryStream) -> None:
    """The same request again, in peace."""
    screen.heading("The same text, undisturbed")
    tokens: list[int] = []
    prompt_tokens = cached = 0
    async with aclosing(request_story(client, len(story.tokens))) as pieces:
        async for piece in pieces:
            tokens += piece.tokens
            prompt_tokens, cached = piece.prompt_tokens or prompt_tokens, piece.cached_tokens or cached
    if tokens != story.tokens:
        raise RuntimeError("the text that was disturbed is another one than the text that was not")
    screen.note(
        f"Letter by letter the same: {len(tokens)} tokens in spite of two kills and a move. Of its prompt's "
        f"{prompt_tokens} tokens {cached} were not computed again, because an instance had them still."
    )


async def reports(client: dunlin.AsyncClient) -> dict[str, InstanceReport]:
    """What each instance says of itself."""
    return {member.address.name: report_of(member) for member in (await client.status()).members if member.instance}


async def reports_when(
    client: dunlin.AsyncClient, holds: Callable[[dict[str, InstanceReport]], bool]
) -> dict[str, InstanceReport]:
    """The first reports for which it holds; those that are there after `REPORT_MOST_S` otherwise."""
    until_s = time.monotonic() + REPORT_MOST_S
    while True:
        now = await reports(client)
        if holds(now) or time.monotonic() >= until_s:
            return now
        await asyncio.sleep(0.1)


def report_of(member: MemberStatus) -> InstanceReport:
    """Of one that has reported."""
    assert member.instance is not None
    return member.instance


async def holder_of(client: dunlin.AsyncClient, request: str, lost: Address | None = None) -> MemberStatus:
    """The instance that holds a running request, from the recorded decisions; the next one where it was `lost`.

    Raises TimeoutError if no decision names one within `REPORT_MOST_S`.
    """
    async with asyncio.timeout(REPORT_MOST_S):
        while True:
            recorded = (await client.explain(request)).reasons
            places = [one.to for one in recorded if isinstance(decode(one.kind, one.payload), Place)]
            for member in (await client.status()).members:
                if places and member.instance and member.address == places[-1] != lost:
                    return member
            await asyncio.sleep(0.1)


async def run_scenes(screen: DemoScreen, cluster: ClusterProcess) -> str:
    """The play, up to the explanation; the request that survived it all."""
    async with dunlin.AsyncClient(cluster.grpc) as client:
        print(render(await client.status()))
        await chat(screen, client)
        await side_by_side(screen, client)
        await burst(screen, client)
        async with aclosing(request_story(client, STORY_TOKENS)) as pieces:
            story = StoryStream(pieces, screen)
            try:
                await kill_instance(screen, client, story)
                await kill_engine(screen, client, story)
                await drain(screen, client, story)
            finally:
                await story.close()
        await compare(screen, client, story)
    return story.request


def explain(screen: DemoScreen, cluster: ClusterProcess, request: str) -> None:
    """The command that tells what happened."""
    screen.heading(f"dunlin explain {request}")
    subprocess.run(command("explain", request, "--endpoint", cluster.grpc), cwd=ROOT, check=True)


def main() -> int:
    """Play it."""
    screen = DemoScreen()
    began_s = time.monotonic()
    cluster = start(screen)
    try:
        explain(screen, cluster, asyncio.run(run_scenes(screen, cluster)))
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
    except (RuntimeError, TimeoutError, ClusterError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
