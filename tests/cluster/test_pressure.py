"""One instance with few slots, a host tier with hardly any room, and more requests than may wait: nothing is lost."""

import threading
import time
from dataclasses import dataclass, field

import dunlin
from cli.launch.cluster_process import ClusterProcess
from dunlin.client.errors import QueueFull

PROMPTS = [f"request {number}: tell me about the sea, and then about the mountains beyond it" for number in range(4)]
TOKENS = 80
FLAGS = ("--instances", "1", "--slots", "256", "--tier-mib", "1", "--max-wait-s", "0.3", "--deterministic")


@dataclass
class Heard:
    """What the clients were told. `wrong` are answers that are neither the text nor a refusal."""

    whole: int = 0
    refused_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def ask(client: dunlin.Client, prompt: str) -> list[int]:
    return list(client.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).tokens)


def insist(client: dunlin.Client, prompt: str, expected: list[int], until_s: float, heard: Heard) -> None:
    """Ask again and again."""
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            tokens = ask(client, prompt)
        except QueueFull as error:
            heard.refused_s.append(time.monotonic() - began_s)
            heard.retry_after_s.append(error.retry_after_s)
            time.sleep(0.2)
        except dunlin.DunlinError as error:
            heard.wrong.append(f"{type(error).__name__}: {error}")
        else:
            heard.whole += 1
            if tokens != expected:
                heard.wrong.append(f"another text for {prompt!r}")


def test_under_pressure_a_request_is_served_whole_or_refused_at_once() -> None:
    with ClusterProcess(*FLAGS) as cluster, dunlin.Client(cluster.grpc) as client:
        expected = [ask(client, prompt) for prompt in PROMPTS]
        heard, until_s = Heard(), time.monotonic() + 12
        threads = [
            threading.Thread(target=insist, args=(client, PROMPTS[i % 4], expected[i % 4], until_s, heard))
            for i in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(1.0)
        status = client.status()
        (instance,) = [member.instance for member in status.members if member.instance is not None]
        (dispatcher,) = [member.dispatcher for member in status.members if member.dispatcher is not None]
    assert heard.wrong == []
    assert heard.whole >= 20
    assert heard.refused_s, "nobody was refused"
    assert sorted(heard.refused_s)[len(heard.refused_s) // 2] < 0.5
    assert min(heard.retry_after_s) >= 0.5
    assert instance.preemptions_total > 0
    assert (dispatcher.failed_total, dispatcher.refused_total) == (0, len(heard.refused_s))
    assert (instance.waiting, instance.running, instance.engine_restarts_total) == (0, 0, 0)
