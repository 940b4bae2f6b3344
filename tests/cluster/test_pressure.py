"""One instance with few slots, a host tier with hardly any room, and more requests than may wait: nothing is lost."""

import threading
import time
from dataclasses import dataclass, field
from statistics import median

import dunlin
from cli.launch.cluster_process import ClusterProcess
from dunlin.client.errors import QueueFull
from dunlin.messages.fleet import DispatcherReport, InstanceReport
from tests.cluster.conftest import eventually

PROMPTS = [f"request {number}: tell me about the sea, and then about the mountains beyond it" for number in range(4)]
TOKENS = 80
MOST_S = 60.0
FLAGS = ("--instances", "1", "--slots", "256", "--tier-mib", "1", "--max-wait-s", "0.3", "--deterministic")


@dataclass
class Heard:
    """What the clients were told. `wrong` are answers that are neither the text nor a refusal."""

    whole_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return len(self.whole_s) >= 20 and bool(self.refused_s or self.wrong)


def ask(client: dunlin.Client, prompt: str) -> list[int]:
    return list(client.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).tokens)


def insist(client: dunlin.Client, prompt: str, expected: list[int], until_s: float, heard: Heard) -> None:
    """Ask again and again, until then and until enough was heard."""
    while time.monotonic() < until_s or (not heard.is_enough and time.monotonic() < until_s + MOST_S):
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
            heard.whole_s.append(time.monotonic() - began_s)
            if tokens != expected:
                heard.wrong.append(f"another text for {prompt!r}")


def reports(client: dunlin.Client) -> tuple[InstanceReport, DispatcherReport]:
    """What the instance and the dispatcher last said of themselves."""
    members = client.status().members
    (instance,) = [member.instance for member in members if member.instance is not None]
    (dispatcher,) = [member.dispatcher for member in members if member.dispatcher is not None]
    return instance, dispatcher


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
        eventually(lambda: reports(client)[0].running == 0 and reports(client)[1].refused_total >= len(heard.refused_s))
        instance, dispatcher = reports(client)
    assert heard.wrong == []
    assert len(heard.whole_s) >= 20
    assert heard.refused_s, "nobody was refused"
    assert median(heard.refused_s) < median(heard.whole_s) / 4, "at once, and not after a wait like that of the others"
    assert min(heard.retry_after_s) >= 0.5
    assert instance.preemptions_total > 0
    assert (dispatcher.failed_total, dispatcher.refused_total) == (0, len(heard.refused_s))
    assert (instance.waiting, instance.running, instance.engine_restarts_total) == (0, 0, 0)
