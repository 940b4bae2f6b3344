"""Bugs in elastic groups that were planted by reading the cores alone (tests/zoo/bugs_unseen.py)."""

from services.global_manager.elastic_groups import ElasticGroups
from services.instance.group.leading.ends import SpreadEnds
from services.instance.group.leading.exchanges import Exchange, ExchangeLedger
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.member import GroupMember
from tests.zoo.bugs_unseen import EVERY
from tests.zoo.plant import Bug, Swap, skip, swap


def _any_part_will_do(original: object, self: Exchange, row: object) -> bool:
    return any(done is not None for done in self.answers.values())


def _newest_first(original: object, self: ExchangeLedger) -> Exchange | None:
    for index, exchange in enumerate(self.outstanding):
        if not exchange.waiting:
            return self.outstanding.pop(index)
    return None


def bug(name: str, what: str, *swaps: Swap) -> Bug:
    """A bug in elastic groups that any invariant may notice."""
    return Bug(name, what, EVERY, swaps, elastic=True)


BUGS = (
    bug(
        "members-given-back-are-kept",
        "a manager does not take back the members that a leader returns",
        skip(ElasticGroups._take_back, lambda: None),
    ),
    bug(
        "wishes-unheard",
        "a manager gives a group no more members",
        skip(ElasticGroups._fulfil_wishes, lambda: None),
    ),
    bug(
        "partial-rows-count",
        "a leader counts a row as computed when one of its members has answered",
        swap(Exchange.is_computed, _any_part_will_do),
    ),
    bug(
        "exchanges-out-of-order",
        "a leader takes in exchanges in the order in which they are answered",
        swap(ExchangeLedger.take_answered, _newest_first),
    ),
    bug(
        "patience-without-end",
        "a leader gives no sequence up, however long nothing moves",
        skip(SpreadEnds.on_patience_over, list),
    ),
    bug(
        "lost-members-unasked",
        "a leader does not ask a lost member to take part again",
        skip(GroupRoster.on_retry, list),
    ),
    bug(
        "early-leader-forgotten",
        "a member forgets a leader that asks before the member's own order comes",
        swap(
            GroupMember.on_join,
            lambda original, self, now_s, sender, asked: (
                original(self, now_s, sender, asked) if self._lease == (asked.group, sender) else []
            ),
        ),
    ),
)
