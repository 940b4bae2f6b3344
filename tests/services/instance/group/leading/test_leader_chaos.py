"""Whatever is lost, refused or cancelled, and whenever: exact tokens, one end per attempt, and every slot back."""

import random

import pytest

from dunlin.messages.dispatch import Ended, Refused, Returned
from tests.services.instance.bench import Attempt
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, member_address

MEMBERS = 4
KINDS = ("place", "place", "engine", "refuse", "leave", "taken", "cancel", "process", "order")


class Chaos:
    """A group to which things happen, and a dispatcher that places again what is returned."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        slots = [self.random.randint(25, 60) for _ in range(MEMBERS)]
        policy = self.random.choice(("balanced", "fewest", "widest"))
        self.group = ScriptedGroup(*slots, groups__policy=policy, groups__ring=seed % 2 == 1)
        self.attempts: dict[int, Attempt] = {}
        self.cancelled: set[int] = set()

    def place(self) -> None:
        request = len(self.attempts) + 1
        tokens = self.random.randint(1, 29)
        self.attempts[request] = self.group.place(request, tokens, max_tokens=self.random.randint(1, 20))

    def again(self) -> None:
        """Place anew what was returned, with all tokens that are known."""
        for request, attempt in self.attempts.items():
            if request in self.cancelled or not any(isinstance(each, Returned | Refused) for each in attempt.heard):
                continue
            place = attempt.place
            known = [*place.tokens, *attempt.tokens]
            self.attempts[request] = self.group.place(
                request,
                known=known,
                prompt_tokens=place.prompt_tokens,
                max_tokens=place.max_tokens,
                attempt=place.attempt + 1,
            )

    def happen(self) -> None:
        kind = self.random.choice(KINDS)
        members = list(self.group.members.values())
        member = self.random.choice(members)
        if member.is_silent:
            return
        if kind == "place" and len(self.attempts) < 8:
            self.place()
        elif kind == "engine":
            member.lose_engine()
        elif kind == "refuse":
            member.refuses_steps = self.random.randint(1, 2)
        elif kind == "leave":
            member.leaves |= set(member.guests)
        elif kind == "taken":
            member.taken = self.random.randint(0, max(0, member.free))
        elif kind == "cancel" and self.attempts:
            self.cancel(self.random.choice(list(self.attempts)))
        elif kind == "process" and sum(each.is_silent for each in members) < 2 and member is not members[0]:
            self.group.lose(list(self.group.members).index(member.address))
        elif kind == "order":
            self.group.order(*[each.address for each in members if not each.is_silent])

    def cancel(self, request: int) -> None:
        if not self.attempts[request].is_over and request not in self.cancelled:
            self.cancelled.add(request)
            self.group.cancel(request)

    def settle(self) -> None:
        """Nothing happens any more: what can be answered is."""
        for member in self.group.members.values():
            member.taken = member.refuses_steps = 0
            member.leaves.clear()
        alive = [member.address for member in self.group.members.values() if not member.is_silent]
        self.group.order(*alive)
        for _ in range(60):
            self.again()
            self.group.run(1.0)
            if self.is_settled and self.group.is_quiet:
                break

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be placed again, and nothing runs."""
        ends = [attempt for request, attempt in self.attempts.items() if request not in self.cancelled]
        return all(attempt.tokens == attempt.expected for attempt in ends)


@pytest.mark.parametrize("seed", range(30))
def test_every_request_ends_and_no_token_is_wrong(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(30):
        chaos.happen()
        chaos.again()
        chaos.group.run(chaos.random.choice((0.0, 0.001, 0.004, 0.011, 0.05)))
    chaos.settle()
    for request, attempt in chaos.attempts.items():
        if request in chaos.cancelled:
            assert any(isinstance(each, Ended) for each in attempt.heard)
        else:
            assert attempt.tokens == attempt.expected, f"request {request}"
    assert len(chaos.group.parts.sequences) == 0
    assert chaos.group.is_quiet
    assert chaos.group.leader.report_fields().items() >= {"spread_waiting": 0, "spread_running": 0}.items()
    assert member_address(0) in chaos.group.members
