"""What a step exchanges with steps of other engines in each layer, and the attention that it computes for them.

Queries go to the holders of keys, which answer with partial results over them; or the stripes' K/V go from member to
member. Everything about one peer and layer is one message each way, in the order of the steps' columns: either side
knows its size, and nothing names rows. Knows no queue and no answer of a step.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from dunlin.engine.attention.base import (
    AttentionKind,
    AttentionPass,
    AttentionPlan,
    BatchRow,
    PartialResult,
    covered_by,
)
from dunlin.engine.attention.spans import RoomSpan, SlotSpan, count_below, end_to_end
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.execution.peers.peer_spans import RetainedSpan, ServedPart, part_of
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.peer_link import PeerLink, PeerPart


@dataclass(frozen=True, slots=True)
class SplitRow:
    """A row of this step with keys at one peer, which is asked for them; or, with a `stripe` (what this engine computes
    of a ring's row), with stripes there. `number` in the batch; None: it does not run, and what is sent of it is
    nothing that counts.
    """

    number: int | None
    queries: range
    spans: tuple[range, ...]
    stripe: SlotSpan | None = None
    kept: tuple[RetainedSpan, ...] = ()


@dataclass(slots=True)
class _Served:
    """A master's rows: what the passes over the own keys compute. `packed`: which of its queries, `order` the same as a
    tensor, where they are not all of them in their order.
    """

    parts: Sequence[ServedPart]
    backend_rows: list[BatchRow] = field(default_factory=list)
    packed: list[int] = field(default_factory=list)
    order: Tensor | None = None
    plain: list[SlotSpan] = field(default_factory=list)


class StepExchange:
    """Owns the links of one step; see `iteration.LayerExchange`. `split[i]`, `served[i]`: what goes over link i.

    `feeding[i]`: numbers of the own rows whose keys, written in this step, the served parts of link i read; None is a
    row that does not run. Such a row that leaves takes the peer's step with it, which would read what was not written.
    """

    def __init__(
        self,
        decoder: Decoder,
        links: Sequence[PeerLink],
        split: Sequence[Sequence[SplitRow]],
        served: Sequence[Sequence[ServedPart]],
        feeding: Sequence[AbstractSet[int | None]],
    ) -> None:
        self.layer = -1
        self._decoder = decoder
        self._backend = decoder.numerics.attention
        self._links = links
        self._asked = [[row for row in rows if row.stripe is None] for rows in split]
        self._striped = [[row for row in rows if row.stripe is not None] for rows in split]
        self._served = [self._plan_served(parts) for parts in served]
        self._plans: list[dict[AttentionKind, AttentionPlan]] = [{} for _ in self._served]
        self._shape = (decoder.config.heads, decoder.config.head_dim)
        share = self._backend.share
        self._parts = [[(row, *share(row.spans, row.queries[-1] + 1)) for row in rows] for rows in self._asked]
        self._result_tokens = [sum(len(row.queries) * len(results) for row, results, _ in each) for each in self._parts]
        self._gone: set[int] = set()
        self._expected: set[tuple[int, PeerPart]] = set()
        self._serving: deque[tuple[int, AttentionPass]] = deque()
        self._attention: AttentionPass | None = None
        self._at: Mapping[int, int] = {}
        self.is_serving = any(each.parts for each in self._served)
        self._feeding = feeding
        for index, link in enumerate(links):
            link.sizes = self._sizes(index)
        self._give_up_fed(None)

    @property
    def done(self) -> bool:
        """Whether nothing of the layer is awaited, to be computed, or to be sent."""
        return not self._expected and not self._serving and all(link.is_sent for link in self._links)

    @property
    def is_awaiting(self) -> bool:
        """Whether a peer has not sent all that belongs to the layer."""
        return bool(self._expected)

    @property
    def is_computing(self) -> bool:
        """Whether it has pieces to compute for others."""
        return bool(self._serving)

    def begin(
        self, layer: int, query: Tensor | None, attention: AttentionPass | None, at: Mapping[int, BatchRow]
    ) -> None:
        """The own rows' queries, keys and values of the layer are there; `at`: rows by number, as packed now."""
        self.layer, self._attention = layer, attention
        numbers = list(at)
        self._at = {number: place for place, number in enumerate(numbers)}
        for index, (link, served) in enumerate(zip(self._links, self._served, strict=True)):
            if asked := self._asked[index]:  # queries first: the peer has to compute with them
                link.send(layer, PeerPart.QUERY, [self._query(row, query, at) for row in asked])
                self._expected.add((index, PeerPart.ANSWER))
            if striped := self._striped[index]:
                link.send(layer, PeerPart.KEYS, [self._stripe(row) for row in striped])
                self._expected.add((index, PeerPart.KEYS))
            if served.parts and self.is_serving:
                self._expected.add((index, PeerPart.QUERY))
        for row in {row.number: row for row in chain.from_iterable(self._striped)}.values():
            assert row.stripe is not None
            self._keep(row, row.stripe.positions, row.stripe)

    def advance(self) -> bool:
        """Send, take in what has arrived, and compute a piece for a master; returns whether there was anything to do.

        :raises TransferError: a peer is gone, or computes something else.
        """
        worked = False
        for index, link in enumerate(self._links):
            worked |= link.flush()
            if link.is_given_up:
                worked |= self._do_without(index)
                continue
            for part, content in link.poll(self.layer):
                self._take(index, part, content)
                worked = True
        if self._serving:
            index, attention = self._serving[0]
            if not attention.advance():
                self._serving.popleft()
                self._answer(index, attention)
                self._links[index].flush()  # its master waits for it
            worked = True
        if not worked:
            for link in self._links:
                link.check_met()
        return worked

    def leave(self, number: int) -> None:
        """Row `number` has left: what still comes of it does not count, and no peer may go on with keys of it."""
        self._gone.add(number)
        self._give_up_fed(number)

    @property
    def size_bytes(self) -> int:
        """Of what is under way in the layer."""
        return sum(link.size_bytes for link in self._links) + sum(each.size_bytes for _, each in self._serving)

    def set_aside(self, link: int) -> None:
        """The step is suspended, and another one needs the room of a link."""
        self._links[link].set_aside()

    def open(self) -> None:
        """The step goes on: take the rooms again that were set aside."""
        for link in self._links:
            link.open()

    def stop_serving(self) -> None:
        """Answer no master any more: the step is to end."""
        self.is_serving = False

    def give_up(self) -> None:
        """The step ends before its last layer: its peers need not wait."""
        for link in self._links:
            link.give_up()

    def _give_up_fed(self, number: int | None) -> None:
        for link, rows in zip(self._links, self._feeding, strict=True):
            if number in rows:
                link.give_up()

    # --- what arrives ---

    def _do_without(self, index: int) -> bool:
        """The link was given up; returns whether anything was awaited of the peer.

        :raises TransferError: rows need it.
        """
        expected = {each for each in self._expected if each[0] == index}
        named = chain(self._asked[index], self._striped[index])
        rows = [row for row in named if row.number in self._at and row.number not in self._gone]
        if rows and expected - {(index, PeerPart.QUERY)}:
            raise TransferError(
                "the step of a peer has ended before this one, or what it needs of this one is not there"
            )
        self._links[index].give_up()
        self._expected -= expected
        return bool(expected)

    def _take(self, index: int, part: PeerPart, content: Bytes) -> None:
        self._expected.discard((index, part))
        if part is PeerPart.QUERY:
            self._begin_serving(index, content)
        elif part is PeerPart.ANSWER:
            self._take_answer(index, content)
        else:
            self._take_stripes(index, content)

    def _begin_serving(self, index: int, content: Bytes) -> None:
        served = self._served[index]
        query = torch.from_numpy(content).view(self._decoder.dtype).view(-1, *self._shape).to(self._decoder.device)
        query = query if served.order is None else query[served.order]
        layer_kv = self._decoder.kv[self.layer]
        self._serving.append((index, self._plan(index).start(query, layer_kv, dtype=torch.float32)))

    def _plan(self, index: int) -> AttentionPlan:
        """The master's rows, planned for the layer."""
        plans, kind = self._plans[index], self._decoder.attention_kind(self.layer)
        if kind not in plans:
            rows = self._served[index].backend_rows
            plans[kind] = self._backend.plan(rows if kind.window else [_end_to_end(row) for row in rows], kind)
        return plans[kind]

    def _answer(self, index: int, attention: AttentionPass) -> None:
        served, layer_kv = self._served[index], self._decoder.kv[self.layer]
        results = attention.result() if served.backend_rows else ()
        plain = [span.gather(layer_kv, 0, len(span.positions)) for span in served.plain]
        self._links[index].send(self.layer, PeerPart.ANSWER, [*results, *plain])

    def _take_answer(self, index: int, content: Bytes) -> None:
        heads, head_dim = self._shape
        found, tokens = self._parts[index], self._result_tokens[index]
        split = tokens * heads * head_dim * 4
        whole = torch.from_numpy(content).to(self._decoder.device)
        out = whole[:split].view(torch.float32).view(-1, heads, head_dim)
        lse = whole[split : split + tokens * heads * 4].view(torch.float32).view(-1, heads)
        at, room_at = 0, split + tokens * heads * 4
        for row, results, rooms in found:
            for spans in results:
                stop = at + len(row.queries)
                self._add(row, PartialResult(covered_by(spans), out[at:stop], lse[at:stop]))
                at = stop
            for part in rooms:
                room_at = self._take_room(row, part, whole, room_at)

    def _take_stripes(self, index: int, content: Bytes) -> None:
        whole, at = torch.from_numpy(content).to(self._decoder.device), 0
        for row in self._striped[index]:
            for span in row.spans:
                at = self._take_room(row, span, whole, at)

    def _take_room(self, row: SplitRow, positions: range, whole: Tensor, at: int) -> int:
        stop, layer_kv = at + len(positions) * self._token_bytes, self._decoder.kv[self.layer]
        room = RoomSpan(positions, whole[at:stop].view(layer_kv.dtype).view(-1, *layer_kv.shape[1:]))
        self._keep(row, positions, room)
        self._add(row, room)
        return stop

    def _add(self, row: SplitRow, part: RoomSpan | PartialResult) -> None:
        if row.number is not None and row.number in self._at and row.number not in self._gone:
            assert self._attention is not None
            self._attention.add(self._at[row.number], part)

    # --- what is sent ---

    def _query(self, row: SplitRow, query: Tensor | None, at: Mapping[int, BatchRow]) -> Tensor:
        if query is None or row.number is None or row.number not in at:
            return torch.zeros(len(row.queries), *self._shape, dtype=self._decoder.dtype)
        found = at[row.number]
        return query[found.start : found.stop]

    def _stripe(self, row: SplitRow) -> Tensor:
        layer_kv, stripe = self._decoder.kv[self.layer], row.stripe
        assert stripe is not None
        if row.number is None:
            return layer_kv.new_zeros(len(row.queries), *layer_kv.shape[1:])
        return stripe.gather(layer_kv, 0, len(stripe.positions))

    def _keep(self, row: SplitRow, positions: range, span: SlotSpan | RoomSpan) -> None:
        """Write what is retained of the tokens at `positions` into its slots."""
        layer_kv = self._decoder.kv[self.layer]
        if row.number is None or row.number in self._gone:
            return
        for region in row.kept:
            first, stop = count_below(positions, region.start), count_below(positions, region.stop)
            if first < stop:
                slots = range(region.slot - region.start + positions[first], layer_kv.shape[0], positions.step)
                slots = slots[: stop - first]
                layer_kv[slots.start : slots[-1] + 1 : slots.step] = span.gather(layer_kv, first, stop)

    # --- sizes ---

    @property
    def _token_bytes(self) -> int:
        """Of one token's K/V in a layer."""
        return self._decoder.kv[0][0].numel() * self._decoder.kv[0].element_size()

    def _sizes(self, index: int) -> dict[PeerPart, int]:
        heads, head_dim = self._decoder.config.heads, self._decoder.config.head_dim
        striped, parts, found = self._striped[index], self._served[index].parts, self._parts[index]
        sizes = {}
        if parts:
            sizes[PeerPart.QUERY] = (
                sum(len(each.queries) for each in parts) * heads * head_dim * self._decoder.dtype.itemsize
            )
        if striped:
            sizes[PeerPart.KEYS] = sum(map(len, chain.from_iterable(row.spans for row in striped))) * self._token_bytes
        if found:
            result_bytes = heads * (head_dim + 1) * 4
            keys = sum(map(len, chain.from_iterable(rooms for _, _, rooms in found)))
            sizes[PeerPart.ANSWER] = self._result_tokens[index] * result_bytes + keys * self._token_bytes
        return sizes

    def _plan_served(self, parts: Sequence[ServedPart]) -> _Served:
        served, first = _Served(parts), 0
        for part in parts:
            tokens, held = len(part.queries), [span.positions for span in part.spans]
            results, rooms = self._backend.share(held, part.queries[-1] + 1)
            for spans in results:
                at, keys = len(served.packed), tuple(_held_at(part, positions) for positions in spans)
                served.backend_rows.append(BatchRow(at, at + tokens, part.queries, keys))
                served.packed += range(first, first + tokens)
            served.plain += [_held_at(part, positions) for positions in rooms]
            first += tokens
        if served.packed != list(range(first)):
            served.order = torch.tensor(served.packed, dtype=torch.int64)
        return served


def _held_at(part: ServedPart, positions: range) -> SlotSpan:
    """Where the keys at `positions`, which lie in one of the part's spans, are."""
    at = bisect_right(part.spans, positions.start, key=lambda span: span.positions.start) - 1
    return part_of(part.spans[at], positions)


def _end_to_end(row: BatchRow) -> BatchRow:
    """The row with its spans as one, so that a kernel reads them in one go: which positions its keys have makes no
    difference where all come before its queries.
    """
    spans = [span for span in row.keys if isinstance(span, SlotSpan)]
    if len(spans) < 2 or len(spans) < len(row.keys) or spans[-1].positions.stop > row.queries[0]:
        return row
    return replace(row, keys=(end_to_end(spans),))


class ServingIteration:
    """The layers of a step that has no rows of its own: it answers for others until none of them asks any more."""

    def __init__(self, exchange: StepExchange, layers: range) -> None:
        self.layer = layers.start
        self.is_waiting = False
        self.size_bytes = 0
        self._exchange = exchange
        self._layer_stop = layers.stop

    @property
    def done(self) -> bool:
        """Whether every layer was answered."""
        return self.layer >= self._layer_stop

    def advance(self) -> None:
        """Take in, send, or compute a piece. :raises TransferError: as `StepExchange.advance`."""
        if self._exchange.layer != self.layer:
            self._exchange.begin(self.layer, None, None, {})
        worked = self._exchange.advance()
        if self._exchange.done:
            self.layer += 1
        self.is_waiting = not worked
