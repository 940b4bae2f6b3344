"""The group order that this instance follows, behind the fence of (epoch, plan version). Knows no slot."""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Address, Effect, Send
from dunlin.messages.plan import GroupOrder, GroupOrderDone, GroupOrderRefused
from dunlin.messages.types import Figure, GroupKind, GroupRole, RejectedOption, Why

LOCAL_ROLES = (GroupRole.LOCAL, GroupRole.PREFILL, GroupRole.DECODE)
"""The roles of an instance in a group of its own."""


class GroupOrders:
    """Holds the order that is followed, `None` before the first. `stale_total` counts fenced orders.

    `lacks_layers()`: layers are missing here, or are about to go.
    """

    def __init__(self, own: Address, lacks_layers: Callable[[], bool] = lambda: False) -> None:
        self.current: GroupOrder | None = None
        self.stale_total = 0
        self._own = own
        self._lacks_layers = lacks_layers

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, plan version) of the order followed."""
        return (self.current.epoch, self.current.plan_version) if self.current is not None else (0, 0)

    @property
    def epoch(self) -> int:
        """The manager's term of the order followed."""
        return self.version[0]

    @property
    def role(self) -> GroupRole:
        """The role of this instance in its group."""
        return self.current.part if self.current is not None else GroupRole.LOCAL

    def report_fields(self) -> dict[str, Any]:
        """The report fields of the followed order; empty before the first."""
        order = self.current
        if order is None:
            return {}
        return {
            "epoch": order.epoch,
            "plan_version": order.plan_version,
            "group": order.group,
            "kind": order.kind,
            "part": order.part,
        }

    def apply(self, sender: Address, order: GroupOrder) -> list[Effect]:
        """Follow the order, or refuse it with the reason and keep the last one."""
        refusal = self._refusal(order)
        if refusal is None:
            self.current = order
            return [Send(sender, GroupOrderDone(order.epoch, order.plan_version))]
        figures = (Figure("epoch", order.epoch), Figure("plan_version", order.plan_version))
        why = Why("orders", "refuse", figures, (RejectedOption("obey", refusal),))
        return [Send(sender, GroupOrderRefused(order.epoch, order.plan_version, refusal, why))]

    def _refusal(self, order: GroupOrder) -> str | None:
        epoch, version = self.version
        if (order.epoch, order.plan_version) < (epoch, version):
            self.stale_total += 1
            return f"stale: this instance follows epoch {epoch}, version {version}"
        is_local = order.kind is GroupKind.LOCAL and order.part in LOCAL_ROLES and order.members == (self._own,)
        if (is_local or self._is_elastic(order)) and not order.layers:
            return "layers are missing here" if not is_local and self._lacks_layers() else None
        what = (
            f"{order.kind.name}, {order.part.name}, {len(order.members)} members, {len(order.layers) or 'all'} layers"
        )
        return f"{what}: only a local group of this instance alone, or its part of an elastic one, with all layers"

    def _is_elastic(self, order: GroupOrder) -> bool:
        """Whether it names this instance once, as what it is by its place: the first is the leader."""
        if order.kind is not GroupKind.ELASTIC or order.members.count(self._own) != 1:
            return False
        return order.part is (GroupRole.LEADER if order.members[0] == self._own else GroupRole.MEMBER)
