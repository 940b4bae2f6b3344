"""The parts of the code whose mutants are sampled, and the tests that are to notice them."""

from dataclasses import dataclass

from benchmarks.harness.processes import ROOT


@dataclass(frozen=True, slots=True)
class Area:
    """`files` are changed, `tests` (files or folders) are run for each change."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


def _under(folder: str, names: str, ending: str = ".py") -> tuple[str, ...]:
    return tuple(f"{folder}/{name}{ending}" for name in names.split())


def _all_in(*folders: str) -> tuple[str, ...]:
    found = (path for folder in folders for path in sorted((ROOT / folder).glob("*.py")))
    return tuple(str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py")


_INSTANCE, _INSTANCE_TESTS = "services/instance", "tests/services/instance"
_DISPATCHER, _DISPATCHER_TESTS = "services/dispatcher", "tests/services/dispatcher"
_ENGINE, _ENGINE_TESTS = "dunlin/engine", "tests/engine"
_STEPS_WITH_PEERS = _under(
    f"{_ENGINE_TESTS}/execution",
    "test_split_keys test_peers_that_wait test_blocks_by_queries test_ring_chunks test_suspended_groups",
)

AREAS: dict[str, Area] = {
    "policies": Area(
        _all_in("dunlin/policies", "dunlin/policies/groups", "dunlin/policies/loongserve"), ("tests/policies",)
    ),
    "cost": Area(_all_in("dunlin/cost"), ("tests/cost",)),
    "membership": Area(_all_in("dunlin/membership"), ("tests/membership",)),
    "steps ahead": Area(
        _under(f"{_ENGINE}/execution", "steps_ahead step_starter step_iterations"),
        _under(
            f"{_ENGINE_TESTS}/execution", "test_steps_behind test_ahead test_step_runner test_runner test_split_keys"
        ),
    ),
    "quantised": Area(
        (
            *_under(
                "dunlin/model/quantization", "awq compressed_tensors fp8 gptq methods module_tensors options packed"
            ),
            *_under("dunlin/model/quantization", "scaled scheme"),
            *_under(f"{_ENGINE}/decoder/quantized", "awq gptq module packed scaled"),
            "dunlin/model/checkpoint_tensors.py",
        ),
        (
            *_under("tests/model", "test_quantization test_checkpoint_tensors"),
            f"{_ENGINE_TESTS}/decoder/quantized",
        ),
    ),
    "ledger": Area(
        _under(f"{_INSTANCE}/scheduling", "step_ledger steps interrupts step_rows step_outcome"),
        (f"{_INSTANCE_TESTS}/scheduling", f"{_INSTANCE_TESTS}/test_core.py"),
    ),
    "residency": Area(
        (
            *_under(f"{_INSTANCE}/kv", "residency slot_table kv_cache whole_regions"),
            f"{_INSTANCE}/adoption.py",
        ),
        (
            *_under(f"{_INSTANCE_TESTS}/kv", "test_residency test_slot_table test_slots_change_owner"),
            *_under(f"{_INSTANCE_TESTS}/kv", "test_kv_cache test_kv_cache_extents test_whole_regions"),
            *_under(_INSTANCE_TESTS, "test_adoption test_core_prefix"),
        ),
    ),
    "migration": Area(
        _under(f"{_INSTANCE}/migration", "peer_copies outgoing kv_transfer migrate_in migrate_out"),
        (f"{_INSTANCE_TESTS}/migration", f"{_INSTANCE_TESTS}/test_core_peers.py"),
    ),
    "arena": Area(
        _under(f"{_ENGINE}/decoder/memory", "granule_ledger layer_arena layer_layout arena"),
        (
            *_under(f"{_ENGINE_TESTS}/decoder/memory", "test_arena test_granule_ledger test_layer_layout"),
            *_under(f"{_ENGINE_TESTS}/execution", "test_remap test_remap_crashes"),
        ),
    ),
    "iteration": Area(
        _under(f"{_ENGINE}/decoder", "iteration piece_sizes"),
        (
            *_under(f"{_ENGINE_TESTS}/decoder", "test_iteration test_piece_sizes"),
            f"{_ENGINE_TESTS}/execution/test_step_runner.py",
            *_STEPS_WITH_PEERS,
        ),
    ),
    "dispatch": Area(
        (
            *_all_in(*(f"{_DISPATCHER}/{part}" for part in ("admission", "lifecycle", "placement", "requests"))),
            f"{_DISPATCHER}/core.py",
        ),
        _under(_DISPATCHER_TESTS, "admission lifecycle placement requests test_core.py test_storm.py", ""),
    ),
    "manager": Area(
        _under(
            "services/global_manager",
            "core elastic_groups fleet_mirror group_draft handoff_assignments long_placement long_requests long_routes "
            "move_orders plan_term plan_throttle planner stream_leases",
        ),
        _under(
            "tests/services/global_manager",
            "test_core test_elastic_groups test_fleet_mirror test_group_losses test_handoff_assignments "
            "test_long_requests test_move_orders test_plan_term test_plan_throttle test_stream_leases",
        ),
    ),
    "monitor": Area(
        _under("services/monitor", "attempt_spans core fleet_views reason_ring registry watchdog"),
        _under(
            "tests/services/monitor",
            "test_attempt_spans test_core test_fleet_views test_reason_ring test_registry test_sleep test_view_bytes "
            "test_watchdog",
        ),
    ),
    "kvstore": Area(
        (*_all_in("services/kvstore/regions", "services/kvstore/transfer"), "services/kvstore/core.py"),
        _under("tests/services/kvstore", "regions transfer test_claims.py test_core.py test_core_machine.py", ""),
    ),
    "groups": Area(
        _all_in(f"{_INSTANCE}/group", f"{_INSTANCE}/group/leading"),
        (f"{_INSTANCE_TESTS}/group",),
    ),
    "cores": Area(_all_in("dunlin/cores"), ("tests/cores",)),
    "execution": Area(
        _under(
            f"{_ENGINE}/execution",
            "step_queue step_runner parked_rows interrupted_rows running_step step_batch sequence",
        ),
        (
            *_under(
                f"{_ENGINE_TESTS}/execution",
                "test_step_runner test_parked_rows test_step_queue test_runner test_sequence test_step_batch "
                "test_prompt_scores",
            ),
            *_STEPS_WITH_PEERS,
        ),
    ),
    "transfers": Area(
        (
            *_under(
                f"{_ENGINE}/transfer",
                "arena_slots copy_planner extents host_tier peer_access peer_arenas peer_link peer_page peer_rooms "
                "region_copy room_pipe room_records slab transfer_queue transit_rooms",
            ),
            f"{_ENGINE}/execution/engine_transfers.py",
        ),
        (
            f"{_ENGINE_TESTS}/transfer",
            *_under(f"{_ENGINE_TESTS}/execution", "test_engine_transfers test_engine_layers test_runner"),
            *_STEPS_WITH_PEERS,
        ),
    ),
}
