"""ConServe's figures as tables: each system beside online requests alone, the eager baseline and the paper."""

from collections.abc import Mapping

from benchmarks.papers.conserve_scenes import ALL, CONSERVE, ONLINE_ONLY, UNIFIED, VLLM, Scene
from benchmarks.papers.results import Found
from benchmarks.papers.running import Row

TIMES_GOAL, TOTAL_GOAL, GAIN_GOAL = 1.10, 0.90, 2.35
"""p99 of TTFT and TPOT over those of `online_only`, total over that of `vllm++`, total over that of `online_only`."""
_HEAD = (
    f"{'':14}{'TTFT p50':>9}{'p99 ms':>8}{'diff.':>8}{'TPOT p99':>9}{'diff.':>7}{'online':>8}{'offline':>8}{'total':>7}"
    f"{'x alone':>8}{'of vllm++':>10}{'preempted':>10}  the paper"
)


def show(scene: Scene, rows: Mapping[str, Row]) -> None:
    """Print one scene's table and whether it meets the goals. Rates are tokens per second."""
    print(f"\n{scene.title}\n{_HEAD}")
    alone, eager = rows[ONLINE_ONLY.name], rows.get(VLLM.name)
    for name, row in rows.items():
        print(f"{name:14}{_columns(row, alone, eager)}  {scene.paper.get(name, '')}{_also(scene, row)}")
    if scene.systems[-1] is UNIFIED:
        for name in (CONSERVE.name if CONSERVE.name in rows else "+ prefetch", UNIFIED.name):
            print(f"  {name}: {_verdict(rows[name], alone, eager)}")


def _columns(row: Row, alone: Row, eager: Row | None) -> str:
    is_other = row is not alone
    ttft = f"{row.ttft_p99 / alone.ttft_p99 - 1:+.0%}" if is_other else ""
    tpot = f"{row.tpot_p99 / alone.tpot_p99 - 1:+.0%}" if is_other else ""
    share = f"{row.total / eager.total:.0%}" if eager is not None else ""
    return (
        f"{row.ttft_p50:9.0f}{row.ttft_p99:8.0f}{ttft:>8}{row.tpot_p99:9.1f}{tpot:>7}{row.online:8.0f}{row.offline:8.0f}"
        f"{row.total:7.0f}{row.total / alone.total:8.2f}{share:>10}{row.preemptions:10}"
    )


def _also(scene: Scene, row: Row) -> str:
    off = f" [{row.offline_off:.0f} offline while off]" if scene.off_s[1] and row.offline else ""
    lost = f" [{row.unanswered} without a token]" if row.unanswered else ""
    return off + lost


def _verdict(row: Row, alone: Row, eager: Row | None) -> str:
    """Each goal, met or missed, with what was found."""
    found = [
        ("TTFT p99", row.ttft_p99 / alone.ttft_p99, row.ttft_p99 <= TIMES_GOAL * alone.ttft_p99),
        ("TPOT p99", row.tpot_p99 / alone.tpot_p99, row.tpot_p99 <= TIMES_GOAL * alone.tpot_p99),
    ]
    if eager is not None:
        found.append(("of vllm++", row.total / eager.total, row.total >= TOTAL_GOAL * eager.total))
        # A system cannot be that far above online requests alone where the machine itself is not.
        if eager.total >= GAIN_GOAL * alone.total:
            found.append(("of online_only", row.total / alone.total, row.total >= GAIN_GOAL * alone.total))
    return ", ".join(f"{name} {value:.2f} {'met' if is_met else 'MISSED'}" for name, value, is_met in found)


def summarise(found: Found) -> None:
    """Print the means over all seeds as one table in Markdown: four systems, beside online requests alone."""
    print("\n| means over all seeds | TTFT p99, ms | TPOT p99, ms | total, tokens/s | of `vllm++` | x alone |")
    print("|---|---|---|---|---|---|")
    for scene in (scene for scenes in found.scenes.values() for scene in scenes if list(scene.systems) == list(ALL)):
        ttft = {each.name: found.mean(scene, each.name, lambda row: row.ttft_p99) for each in ALL}
        tpot = {each.name: found.mean(scene, each.name, lambda row: row.tpot_p99) for each in ALL}
        total = {each.name: found.mean(scene, each.name, lambda row: row.total) for each in ALL}
        ours = (CONSERVE.name, UNIFIED.name)
        shares = " / ".join(f"{total[name] / total[VLLM.name]:.0%}" for name in ours)
        gains = " / ".join(f"{total[name] / total[ONLINE_ONLY.name]:.2f}" for name in ours)
        rates = " / ".join(f"{total[each.name]:.0f}" for each in ALL)
        print(f"| {scene.title} | {_beside(ttft, 0)} | {_beside(tpot, 1)} | {rates} | {shares} | {gains} |")


def _beside(values: Mapping[str, float], digits: int) -> str:
    """All values, with how far ours are from those of online requests alone."""
    alone = values[ONLINE_ONLY.name]
    ours = (f"{values[name]:.{digits}f} ({values[name] / alone - 1:+.0%})" for name in (CONSERVE.name, UNIFIED.name))
    return " / ".join((f"{alone:.{digits}f}", f"{values[VLLM.name]:.{digits}f}", *ours))
