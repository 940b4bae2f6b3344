"""One picture of the fleet as lines of text: pure, from a status and the one before. Knows no terminal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cli.commands.operate.status import group_members, member_state
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, MemberStatus

FULL, HALF, EMPTY = "█", "▌", "·"

Paint = Callable[[str, str], str]
"""Text and what it says of the thing (`good`, `warn`, `bad`, `dim`, `head`), as text of the same visible width."""


@dataclass(frozen=True, slots=True)
class StatusSample:
    """A status, the one `elapsed_s` before it (None: there is none yet), and the time of day for the headline."""

    status: FleetStatus
    before: FleetStatus | None = None
    elapsed_s: float = 1.0
    clock: str = ""

    def rate(self, member: MemberStatus, role: str, counter: str) -> float:
        """Growth of a counter per second; 0 while there is nothing to compare with, or after a restart."""
        now, old = getattr(member, role), self._old(member.address, role)
        if now is None or old is None or self.elapsed_s <= 0:
            return 0.0
        return max(0.0, float(getattr(now, counter) - getattr(old, counter)) / self.elapsed_s)

    def _old(self, address: Address, role: str) -> object | None:
        members = self.before.members if self.before is not None else ()
        return next((getattr(one, role) for one in members if one.address == address), None)


def render_status(moment: StatusSample, width: int, paint: Paint = lambda text, _: text) -> list[str]:
    """The whole picture, each line at most `width` wide (72 is the least that is kept to)."""
    width = max(width, 72)
    members = moment.status.members
    lines = [*_headline(moment, width, paint), ""]
    lines += _section(_instances(moment, width, paint), "no instance", paint)
    lines += ["", *_section(_dispatchers(moment, width, paint), "no dispatcher", paint)]
    kvstores = [one for one in members if one.kvstore is not None]
    if kvstores:
        lines += ["", *_kvstores(moment, kvstores, width, paint)]
    return [*lines, "", *_managers(moment, width, paint)]


def bar(part: float, width: int) -> str:
    """A bar of `width` characters, `part` (0 to 1) of it full, to half a character."""
    halves = round(min(max(part, 0.0), 1.0) * width * 2)
    filled = FULL * (halves // 2) + (HALF if halves % 2 else "")
    return filled.ljust(width, EMPTY)


def short_number(value: float) -> str:
    """A number in at most five characters: 950, 9.5k, 12k, 3.4M."""
    for unit, factor in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = value / factor
        if scaled < 9.95 and unit:
            return f"{scaled:.1f}{unit}"
        if scaled < 999.5:
            return f"{scaled:.0f}{unit}"
    return f"{value / 1e12:.1f}T"


def short_bytes(size_bytes: float) -> str:
    """Bytes in binary units: 64M is 64 MiB."""
    if not size_bytes:
        return "0"
    for unit, factor in (("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)):
        if size_bytes < 1000 * factor:
            return f"{size_bytes / factor:.{0 if size_bytes >= 10 * factor else 1}f}{unit}"
    return f"{size_bytes / (1 << 40):.1f}T"


def _headline(moment: StatusSample, width: int, paint: Paint) -> list[str]:
    status = moment.status
    instances = [one for one in status.members if one.instance is not None]
    suspects = [one for one in status.members if one.suspect]
    tokens = _total(moment.rate(one, "instance", "tokens_total") for one in instances)
    prefill = _total(moment.rate(one, "instance", "prefill_tokens_total") for one in instances)
    running = sum(one.instance.running for one in instances if one.instance)
    waiting = sum(one.instance.waiting for one in instances if one.instance)
    queued = sum(one.dispatcher.queued for one in status.members if one.dispatcher)
    title = f"dunlin  view {status.version}"
    speeds = f"{short_number(tokens)} tokens/s  {short_number(prefill)} prefill/s"
    load = f"{speeds}  {running} running  {waiting} waiting  {queued} queued"
    said = f"{len(suspects)} suspect" if suspects else ""
    gap = " " * max(1, width - len(load) - len(said) - 1)
    return [
        paint(title + moment.clock.rjust(width - len(title)), "head"),
        load + (gap + paint(said, "bad") if said else ""),
    ]


def _total(values: Iterable[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def _section(lines: list[str], otherwise: str, paint: Paint) -> list[str]:
    return lines if len(lines) > 1 else [paint(otherwise, "warn")]


def _instances(moment: StatusSample, width: int, paint: Paint) -> list[str]:
    members = [one for one in moment.status.members if one.address.role == "instance"]
    named = _name_width(members, width)
    room = width - named - 46  # what the other columns leave; six more for each of the last
    wide = room - 18 >= 10
    bars = min(max(room - (18 if wide else 6), 4), 40)
    more = ("preem", "resto", "moved") if wide else ("preem",)
    header = f"{'instance':{named}} {'state':8} {'slots':{bars + 12}} {'run':>4} {'wait':>4} {'tok/s':>6} {'pref/s':>6}"
    lines = [paint(f"{header}{''.join(f' {name:>5}' for name in more)}"[:width], "dim")]
    for one in members:
        lines.append(_instance(moment, one, named, bars, more, paint))
    return lines


def _instance(
    moment: StatusSample, one: MemberStatus, named: int, bars: int, more: tuple[str, ...], paint: Paint
) -> str:
    word = member_state(one)
    start = f"{_fit(one.address.name, named)} {paint(f'{word:8}', _mood(word))} "
    report = one.instance
    if report is None:
        return start + "no report yet"
    used = report.capacity_slots - report.free_slots - report.cached_slots
    part = used / report.capacity_slots if report.capacity_slots else 0.0
    load = paint(bar(part, bars), "bad" if part > 0.95 else "warn" if part > 0.8 else "good")
    share = f"{part:4.0%} {short_number(report.capacity_slots):>6}"
    counts = {
        "preem": report.preemptions_total,
        "resto": report.restored_regions_total,
        "moved": report.migrations_total,
    }
    rates = (moment.rate(one, "instance", "tokens_total"), moment.rate(one, "instance", "prefill_tokens_total"))
    sequences = f"{short_number(report.running):>4} {short_number(report.waiting):>4}"
    numbers = f"{sequences} {short_number(rates[0]):>6} {short_number(rates[1]):>6}"
    return f"{start}{load} {share} {numbers}{''.join(f' {short_number(counts[name]):>5}' for name in more)}"


def _dispatchers(moment: StatusSample, width: int, paint: Paint) -> list[str]:
    members = [one for one in moment.status.members if one.address.role == "dispatcher"]
    named = _name_width(members, width)
    names = ("queue", "run", "req/s", "tok/s", "fail", "refuse", "again")
    header = f"{'dispatcher':{named}} {'state':8}{''.join(f' {name:>6}' for name in names)}"
    lines = [paint(header[:width], "dim")]
    for one in members:
        word, report = member_state(one), one.dispatcher
        start = f"{_fit(one.address.name, named)} {paint(f'{word:8}', _mood(word))}"
        if report is None:
            lines.append(f"{start} no report yet")
            continue
        values = (
            report.queued,
            report.running,
            moment.rate(one, "dispatcher", "finished_total"),
            moment.rate(one, "dispatcher", "tokens_total"),
            report.failed_total,
            report.refused_total,
            report.replaced_total,
        )
        lines.append(start + "".join(f" {short_number(value):>6}" for value in values))
    return lines


def _kvstores(moment: StatusSample, members: list[MemberStatus], width: int, paint: Paint) -> list[str]:
    named = _name_width(members, width)
    bars = min(max(width - named - 46, 8), 40)
    header = f"{'kvstore':{named}} {'state':8} {'host tier':{bars + 16}} {'regions':>8} {'refuse':>6}"
    lines = [paint(header[:width], "dim")]
    for one in members:
        report = one.kvstore
        assert report is not None
        part = report.used_bytes / report.capacity_bytes if report.capacity_bytes else 0.0
        load = paint(bar(part, bars), "warn" if part > 0.9 else "good")
        word = member_state(one)
        room = f"{short_bytes(report.used_bytes):>6} of {short_bytes(report.capacity_bytes):<5}"
        start = f"{_fit(one.address.name, named)} {paint(f'{word:8}', _mood(word))}"
        lines.append(f"{start} {load} {room} {short_number(report.regions):>8} {short_number(report.refused_total):>6}")
    return lines


def _managers(moment: StatusSample, width: int, paint: Paint) -> list[str]:
    managers = []
    for one in moment.status.members:
        if one.manager is None:
            continue
        leads = f"leads, epoch {one.manager.epoch}, plan {one.manager.plan_version}"
        if one.manager.long_waiting:
            leads += f", {one.manager.long_waiting} long requests wait"
        managers.append(f"{one.address.name} {leads if one.manager.epoch else 'stands by'}")
    line = "; ".join(managers) or "no global manager"
    status = moment.status
    groups = [f"{number}: {' '.join(names)}" for number, names in sorted(group_members(status.members).items())]
    together = [f"groups of several: {'; '.join(groups)}"[:width]] if groups else []
    lost = f", {status.reasons_lost} lost" if status.reasons_lost else ""
    last = f"{status.suspicions_total} suspicions, {status.reasons_held} reasons held{lost}"
    return [line[:width], *together, paint(last[:width], "dim")]


def _name_width(members: list[MemberStatus], width: int) -> int:
    longest = max((len(one.address.name) for one in members), default=0)
    return min(max(longest, 12), 14 if width < 100 else 24)


def _fit(name: str, width: int) -> str:
    """The end of a long name tells more than its beginning."""
    return f"{name:{width}}" if len(name) <= width else f"…{name[1 - width :]}"


def _mood(word: str) -> str:
    return {"up": "good", "starting": "warn", "draining": "warn"}.get(word, "bad")
