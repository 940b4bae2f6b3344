"""Bugs to plant in the instance: slots, sequences, what lies in the host tier, engines that follow each other."""

from tests.zoo.plant import Bug, Edit

LIVES = "services.instance.lives"
SLOTS = "services.instance.slots"

BUGS = (
    Bug(
        "span-off-by-one",
        "a decode row is given the slot after its own",
        ("I6", "I8", "I1"),
        (Edit(SLOTS, "found.append((first + offset, taken))", "found.append((first + offset + (stop > 40), taken))"),),
        seed=30000,
    ),
    Bug(
        "leaked-slots",
        "the slots of a sequence that ends are not given back",
        ("I8",),
        (
            Edit(
                LIVES,
                "self.slab.retire(sequence)\n        effects += self._tier.cut(sequence)",
                "effects += self._tier.cut(sequence)",
            ),
        ),
        seed=100017,
    ),
    Bug(
        "leaked-extent",
        "the last piece of a holding in pieces is not given back",
        ("I8",),
        (
            Edit(
                SLOTS,
                "for extent in holding.extents:\n            self._put_back(extent)\n        return holding.slots",
                "for extent in holding.extents[: max(1, len(holding.extents) - 1)]:\n            self._put_back(extent)\n        return holding.slots",
            ),
        ),
        seed=30002,
    ),
    Bug(
        "slots-freed-while-in-use",
        "a sequence that ends gives its slots back while outstanding steps still write them",
        ("I6", "I8", "core"),
        (Edit(LIVES, "busy = sequence.in_steps > 0 or sequence.state", "busy = sequence.state"),),
        seed=100049,
    ),
    Bug(
        "preempted-while-in-use",
        "a preempted sequence leaves the slab while outstanding steps still name it",
        ("I6", "I7", "I8", "I1", "core", "I12"),
        (
            Edit(
                LIVES,
                "if sequence.in_steps > 0:\n            return []\n        if sequence.state is State.ENDING:",
                "if sequence.state is State.ENDING and sequence.in_steps > 0:\n            return []\n        if sequence.state is State.ENDING:",
            ),
        ),
        seed=30008,
    ),
    Bug(
        "pinned-block-evicted",
        "a prefix that a running sequence uses is given away",
        ("I6", "I8"),
        (
            Edit(
                "services.instance.prefixes",
                "return block.is_held and block.pins == 0 and block.children == 0",
                "return block.is_held and block.children == 0",
            ),
        ),
        seed=100039,
    ),
    Bug(
        "prefix-shared-by-tenants",
        "a prefix is found by its tokens, whoever's it is",
        ("I6",),
        (
            Edit(
                "services.instance.slab",
                "root(sequence.place.tenant, self._weights_digest",
                'root("", self._weights_digest',
            ),
        ),
        seed=30000,
    ),
    Bug(
        "donated-too-much",
        "blocks are shared before they have KV",
        ("I6", "I7", "I8", "core"),
        (
            Edit(
                "services.instance.slab",
                "path, link, blocks = self._shared.get(sequence.number, []), self._link(sequence), tokens // BLOCK_TOKENS",
                "path, link, blocks = self._shared.get(sequence.number, []), self._link(sequence), len(sequence.tokens) // BLOCK_TOKENS",
            ),
        ),
        seed=100129,
    ),
    Bug(
        "checksum-skipped",
        "a region that came back damaged is used all the same",
        ("I6", "I7"),
        (
            Edit(
                LIVES,
                "if done.status is MoveStatus.OK and sequence.answered == region.start:",
                "if sequence.answered == region.start:",
            ),
        ),
        seed=100099,
    ),
    Bug(
        "checkpoint-of-freed-slots",
        "a checkpoint counts although its sequence has left those slots meanwhile",
        ("I6", "I7"),
        (
            Edit(
                "services.instance.checkpointer",
                "same = sequence.number == move.number and _is_next(sequence, region.start, region.stop)",
                "same = sequence.kept_tokens == region.start",
            ),
            Edit(LIVES, "cancelled = self._tier.cancel(sequence, Purpose.CHECKPOINT)", "cancelled: list[Effect] = []"),
        ),
        seed=40025,
    ),
    Bug(
        "outlived-kvstore-obeyed",
        "a kvstore that slept and was replaced takes an instance back when it wakes",
        ("I8", "I7"),
        (Edit("services.instance.core", "if self.tier.is_outlived(sender):", "if False:"),),
        seed=4402163,
    ),
    Bug(
        "room-with-more-than-is-known",
        "an attempt of fewer tokens than lie in the room that it takes over ends the instance",
        ("I8", "core"),
        (Edit("dunlin.prefix", "0 <= stop <= len(tokens) and chain_of", "chain_of"),),
        seed=4602299,
    ),
    Bug(
        "answer-of-a-dead-kvstore",
        "room in a kvstore's memory is used after that kvstore was replaced",
        ("I7", "I12", "I8", "core"),
        (
            Edit(
                "services.instance.tier",
                "if kept.keeper != self._kvstore:\n            return []",
                "if self._kvstore is None:\n            return []",
            ),
        ),
        seed=100310,
    ),
    Bug(
        "stale-epoch-obeyed",
        "an order of an older epoch or plan version is followed",
        ("I2",),
        (
            Edit(
                "services.instance.orders",
                "if (order.epoch, order.plan_version) < (epoch, version):",
                "if order.epoch < 0:",
            ),
        ),
        seed=100079,
    ),
    Bug(
        "old-cancel-obeyed",
        "the cancellation of an old attempt ends the new one",
        ("I12", "I1"),
        (
            Edit(
                "services.instance.admission",
                "if sequence.place.request == cancel.request and sequence.place.attempt <= cancel.attempt",
                "if sequence.place.request == cancel.request",
            ),
        ),
        seed=101734,
    ),
    Bug(
        "wild-slab-trusted",
        "after an engine's wild write its slab is used again",
        ("I6",),
        (
            Edit(
                "services.instance.revival",
                "return exited is not None and (exited.ended_by_us or exited.signal not in CRASH_SIGNALS)",
                "return exited is not None",
            ),
        ),
        seed=30010,
    ),
    Bug(
        "unanswered-rows-count",
        "after an engine's end a sequence goes on behind rows that were never answered",
        ("I6", "I1", "I12", "core"),
        (
            Edit(
                "services.instance.revival",
                "sequence.computed = sequence.answered\n            self._lives.slab.mark",
                "self._lives.slab.mark",
            ),
        ),
        seed=100099,
    ),
    Bug(
        "poison-runs-for-ever",
        "a request that crashes engines alone is tried again and again",
        ("I1", "I12"),
        (
            Edit(
                "services.instance.suspects",
                "return sequence.suspicion >= IN_COMPANY + CRASHES_ALONE_MAX",
                "return sequence.suspicion < 0",
            ),
        ),
        seed=100108,
    ),
    Bug(
        "sleep-taken-for-a-hang",
        "an instance that slept holds its engine responsible for the time",
        ("I9",),
        (
            Edit(
                "services.instance.watch",
                "if slept or safepoints != self.safepoints or not outstanding",
                "if safepoints != self.safepoints or not outstanding",
            ),
        ),
        seed=100218,
    ),
    Bug(
        "adopted-one-token-short",
        "a dispatcher that takes a request over is not told its last token",
        ("I1", "I12"),
        (Edit("services.instance.adoption", "rest = tokens[adopt.length :]", "rest = tokens[adopt.length : -1]"),),
        seed=100119,
    ),
    Bug(
        "arrival-not-given-up",
        "room for a sequence that never arrives is kept",
        ("I8",),
        (
            Edit(
                "services.instance.arrivals",
                "return self._free(arrival) if arrival.moving is None else []",
                "return []",
            ),
        ),
        seed=30015,
    ),
    Bug(
        "arrival-says-too-much",
        "a region that was not copied counts as filled",
        ("I6", "I7", "core"),
        (
            Edit(
                "services.instance.arrivals",
                "if done.status is not MoveStatus.OK:\n            return self._cut",
                "if done.status is MoveStatus.CANCELLED:\n            return self._cut",
            ),
        ),
        seed=100249,
    ),
    Bug(
        "orphans-kept",
        "a client's end does not reach the instance: cancelled sequences run on",
        ("I12", "I1"),
        (
            Edit(
                "services.instance.admission",
                "effects += self._lives.stop(sequence)\n        return effects",
                "pass\n        return effects",
            ),
        ),
        seed=100209,
    ),
    Bug(
        "kept-room-never-returned",
        "what was kept in the host tier stays there when it is not needed any more",
        ("I8",),
        (Edit("services.instance.tier", "effects += self.release(kept.host, corrupt and is_first)", "pass"),),
        seed=50002,
    ),
)
