"""Which way of placing pays: `python -m benchmarks.kv.prefix_affinity [--instances N] [--conversations N] [--json]`.

Conversations of several turns over the real cores and fake engines in virtual time (a step takes 10 ms, and 0.5 ms more
for each token computed), placed by each policy. Four kinds of text: conversations that have nothing in common, ones
that begin with one of a few system prompts, many requests at once with one long beginning, and single requests with
nothing in common, where no policy can save anything. Exact: the same figures on every machine.
"""

import argparse
import json
from dataclasses import dataclass, field

from dunlin.workload.loadgen.stats import nearest_rank
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

POLICIES = ("prefix_affinity", "least_loaded", "fewest_requests")
KINDS = ("own texts", "system prompts", "one hot prompt", "single requests")
SINGLE = ("one hot prompt", "single requests")
TURNS = 5
THINK_S = 0.4
LOOK_S = 0.02


@dataclass
class ChatSession:
    """One conversation: what was said, and whose turn it is."""

    index: int
    known: list[int]
    turns: int
    due_s: float
    client: RecordingClient | None = None
    asked_s: float = 0.0
    first_s: list[float] = field(default_factory=list)

    def step(self, cluster: ScriptedCluster) -> None:
        """Ask when it is time, and take the answer when it is there."""
        now_s = cluster.world.now_s
        if self.client is not None and self.client.finish:
            assert self.client.is_exact, f"conversation {self.index} was told something else"
            self.first_s.append(self.client.times_s[0] - self.asked_s)
            self.known += self.client.tokens
            self.client, self.due_s = None, now_s + THINK_S
        if self.client is None and self.turns and now_s >= self.due_s:
            self.known += [(31 * self.index + 7 * self.turns + position) % 1000 for position in range(30)]
            self.turns -= 1
            self.asked_s = now_s
            self.client = cluster.submit(self.known, max_tokens=20, seed=self.index)

    @property
    def is_over(self) -> bool:
        return self.client is None and not self.turns


def chat_sessions(kind: str, conversations: int) -> list[ChatSession]:
    """The conversations of one kind, which start one after the other."""
    talks = []
    for index in range(conversations):
        start = {"system prompts": index % 3, "one hot prompt": 0}.get(kind, 10 + index)
        known = [(37 * start + 11 * position) % 1000 for position in range(400)]
        turns = 1 if kind in SINGLE else TURNS
        talks.append(ChatSession(index, known, turns, (0.01 if kind == "one hot prompt" else 0.05) * index))
    return talks


def run(policy: str, kind: str, instances: int, conversations: int) -> dict[str, float]:
    """The figures of one policy over one kind of text."""
    cluster = ScriptedCluster(
        instances=instances,
        engine={"slots": 4096, "step_s": 0.01, "token_s": 0.0005, "audit": False},
        dispatcher={"placement.policy": policy},
    )
    cluster.world.keep_sent = False
    cluster.run_until_ready()
    talks = chat_sessions(kind, conversations * TURNS if kind in SINGLE else conversations)
    began_s = cluster.world.now_s
    for talk in talks:
        talk.due_s += began_s
    while not all(talk.is_over for talk in talks):
        for talk in talks:
            talk.step(cluster)
        cluster.world.run(for_s=LOOK_S)
    reports = [core.report() for core in cluster.instances.values()]
    queries = sum(report.prefix_query_tokens_total for report in reports)
    first_s = sorted(second for talk in talks for second in talk.first_s)
    return {
        "hit_rate": sum(report.prefix_hit_tokens_total for report in reports) / queries,
        "prefill_tokens": sum(report.prefill_tokens_total for report in reports),
        "ttft_mean_s": sum(first_s) / len(first_s),
        "ttft_p99_s": nearest_rank(first_s, 0.99),
        "seconds": cluster.world.now_s - began_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = {
        kind: {policy: run(policy, kind, options.instances, options.conversations) for policy in POLICIES}
        for kind in KINDS
    }
    if options.json:
        print(json.dumps(table))
        return
    for kind, rows in table.items():
        print(f"{kind:18}" + "".join(f"{policy:>18}" for policy in rows))
        for name in next(iter(rows.values())):
            print(f"  {name:16}" + "".join(f"{row[name]:18.3f}" for row in rows.values()))


if __name__ == "__main__":
    main()
