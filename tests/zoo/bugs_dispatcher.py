"""Bugs to plant in the dispatcher: the journal, the fences, who may read and use what."""

from tests.zoo.plant import Bug, Edit

ATTEMPTS = "services.dispatcher.attempts"
CORE = "services.dispatcher.core"
JOURNAL = "services.dispatcher.journal"

BUGS = (
    Bug(
        "double-delivery",
        "a client's first token is sent twice",
        ("I1",),
        (
            Edit(
                ATTEMPTS,
                "effects += [Send(reader, delta) for reader in request.readers]\n        if row.finish",
                "effects += [Send(reader, delta) for reader in request.readers] * (1 + (request.generated == 1))\n        if row.finish",
            ),
        ),
        seed=30000,
    ),
    Bug(
        "gap-delivered",
        "the end of a stream is overlooked, and a token that is not the next one is passed on",
        ("I1",),
        (
            # Streams are in order and a broken one ends what it carried: gaps come only where that is not seen.
            Edit(
                CORE,
                "effects += self._endings.lost(now_s, request, f\"lost: {message.reason or 'the stream ended'}\")",
                "pass",
            ),
            Edit(ATTEMPTS, "elif position != len(request.tokens):", "elif position < len(request.tokens):"),
            Edit(ATTEMPTS, "if row.position != len(request.tokens):", "if row.position < len(request.tokens):"),
        ),
        seed=100182,
    ),
    Bug(
        "lost-journal-entry",
        "a request whose instance died is not queued again",
        ("I8", "I12"),
        (
            Edit(
                JOURNAL,
                "request.lost = (str(instance), lost)\n        insort(self._again, request.number)",
                "request.lost = (str(instance), lost)",
            ),
        ),
        seed=100169,
    ),
    Bug(
        "lost-token",
        "the last token that was delivered is not in the journal when the request moves on",
        ("I1",),
        (
            Edit(
                JOURNAL,
                "request.lost = (str(instance), lost)",
                'request.lost = (str(instance), lost)\n        if request.generated > 1 and lost.startswith(("lost", "returned", "suspect")):\n            del request.tokens[-1]',
            ),
        ),
        seed=100182,
    ),
    Bug(
        "dropped-fence",
        "what an instance says of an old attempt counts",
        ("I2", "I1", "core"),
        (
            Edit(
                JOURNAL,
                "if request is None or request.attempt != attempt or request.instance != instance:\n            return None\n        return request",
                "if request is None or request.instance is None:\n            return None\n        return request",
            ),
        ),
        seed=100182,
    ),
    Bug(
        "loss-unnoticed",
        "the end of an instance's stream is not the end of what it held",
        ("I12",),
        (
            Edit(
                CORE,
                "effects += self._endings.lost(now_s, request, f\"lost: {message.reason or 'the stream ended'}\")",
                "pass",
            ),
        ),
        seed=100193,
    ),
    Bug(
        "suspicion-ignored",
        "a suspect instance keeps its requests",
        ("I12",),
        (Edit(CORE, 'effects += self._endings.lost(now_s, request, "suspect: no sign of progress")', "pass"),),
        seed=100199,
    ),
    Bug(
        "deadline-ignored",
        "a request's time runs out and nothing happens",
        ("I12", "I1"),
        (Edit(CORE, "return self._endings.tell(now_s, request, Finish.DEADLINE, text)", "return []"),),
        seed=100218,
    ),
    Bug(
        "absent-client-served",
        "a client leaves and its request runs on",
        ("I12",),
        (Edit(CORE, "return self._endings.stop(now_s, request, message.finish, cause)", "return []"),),
        seed=100211,
    ),
    Bug(
        "foreign-cancel",
        "a tenant cancels another's request by its id",
        ("I1",),
        (Edit(CORE, "request = None  # another tenant's: not even that there is one is told", "pass"),),
        seed=100232,
    ),
    Bug(
        "full-queue-taken",
        "a queue that is full takes one more",
        ("I11",),
        (
            Edit(
                "services.dispatcher.admission",
                "if queued < most:\n            return None",
                "if queued < 100 * most:\n            return None",
            ),
        ),
        seed=100233,
    ),
    Bug(
        "quota-off-by-one",
        "a tenant runs one request more than it may",
        ("I11",),
        (
            Edit(
                "services.dispatcher.quotas", "account.open + requests > quota.running", "account.open > quota.running"
            ),
        ),
        seed=40005,
    ),
    Bug(
        "quota-never-returned",
        "a request that ended goes on counting",
        ("I11",),
        (Edit("services.dispatcher.quotas", "hold.account.open -= 1\n", "pass\n"),),
        seed=30000,
    ),
    Bug(
        "old-monitor-believed",
        "a monitor that was replaced is believed again",
        ("I2",),
        (
            Edit(
                "services.dispatcher.fleet",
                "if self._monitor is not None and monitor.incarnation < self._monitor.incarnation:\n                return False",
                "pass",
            ),
        ),
        seed=100342,
    ),
    Bug(
        "resumed-from-the-start",
        "a client that comes back with tokens is sent them again",
        ("I1",),
        (
            Edit(
                "services.dispatcher.joining", "delta = rest(request, len(submit.received))", "delta = rest(request, 0)"
            ),
        ),
        seed=100276,
    ),
    Bug(
        "prompts-are-free",
        "a tenant's tokens are counted without its prompts",
        ("I11",),
        (
            Edit(
                "services.dispatcher.quotas",
                "account.tokens.level -= len(submit.tokens) + generate",
                "account.tokens.level -= generate",
            ),
        ),
        seed=100837,
    ),
    Bug(
        "end-told-twice",
        "a client whose time is over hears so twice",
        ("I1",),
        (
            Edit(
                "services.dispatcher.endings",
                "return [*words, *self.stop(now_s, request, finish, text)]",
                "return [*words, *words, *self.stop(now_s, request, finish, text)]",
            ),
        ),
        seed=100267,
    ),
)
