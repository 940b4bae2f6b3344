"""Which processes a cluster has, how their ports are claimed, and when it counts as ready."""

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.launch import preflight
from dunlin.launch.errors import LaunchError
from dunlin.launch.options import UpOptions
from dunlin.launch.plan import Ports, ProcessSpec, service_specs
from dunlin.launch.ports import claim_port, claim_ports, endpoint
from dunlin.launch.readiness import judge
from dunlin.messages.fleet import FleetStatus, InstanceReport, MemberStatus
from services.instance.config import InstanceConfig


def options(**changes: Any) -> UpOptions:
    return dataclasses.replace(UpOptions(data_dir=Path("/d")), **changes)


def specs(**changes: Any) -> list[ProcessSpec]:
    return list(service_specs(options(**changes), Ports((1, 11, 21), (2, 12, 22), 3, 4), "h:9", "node", 77))


def flag(spec: ProcessSpec, name: str) -> str:
    return spec.command[spec.command.index(name) + 1]


def test_a_cluster_has_one_of_each_and_n_instances() -> None:
    roles = [spec.role for spec in specs(instances=3)]
    assert roles == ["monitor", "global_manager", "kvstore", "dispatcher", "instance", "instance", "instance"]
    assert len({spec.name for spec in specs(instances=3)}) == 7


def test_further_dispatchers_have_doors_of_their_own() -> None:
    dispatchers = [spec for spec in specs(dispatchers=3) if spec.role == "dispatcher"]
    assert [flag(spec, "--listen") for spec in dispatchers] == ["127.0.0.1:2", "127.0.0.1:12", "127.0.0.1:22"]
    assert [flag(spec, "--http") for spec in dispatchers] == ["127.0.0.1:1", "127.0.0.1:11", "127.0.0.1:21"]


def test_an_ipv6_address_is_in_brackets_before_its_port() -> None:
    dispatcher = next(spec for spec in specs(host="::1") if spec.role == "dispatcher")
    assert (flag(dispatcher, "--listen"), flag(dispatcher, "--http")) == ("[::1]:2", "[::1]:1")
    assert endpoint("::", 7) == "[::]:7"
    assert endpoint("host", 7) == "host:7"


def test_every_dispatcher_knows_the_web_pages_that_may_ask() -> None:
    for spec in specs(dispatchers=2, cors=("https://a.example", "*")):
        assert ("--cors=https://a.example" in spec.command) is (spec.role == "dispatcher")
        assert ("--cors=*" in spec.command) is (spec.role == "dispatcher")


def test_nodes_that_are_played_have_a_kvstore_each_and_share_the_instances() -> None:
    there = [(spec.role, flag(spec, "--node")) for spec in specs(instances=3, nodes=2, managers=2)]
    assert [node for role, node in there if role == "kvstore"] == ["node-0", "node-1"]
    assert [node for role, node in there if role == "instance"] == ["node-0", "node-1", "node-0"]
    assert [node for role, node in there if role == "global_manager"] == ["node-0", "node-1"]


def test_one_node_keeps_its_name() -> None:
    assert {flag(spec, "--node") for spec in specs()} == {"node"}


def test_the_doors_know_the_name_of_the_model() -> None:
    named = [spec for spec in specs(model_name="-my model", dispatchers=2) if "--model-name=-my model" in spec.command]
    assert [spec.role for spec in named] == ["dispatcher", "dispatcher"]
    assert not any("--model-name" in word for spec in specs() for word in spec.command)


def test_every_process_knows_the_user_of_etcd() -> None:
    for spec in specs(etcd_user="u", etcd_password_file=Path("/p")):
        assert (flag(spec, "--etcd-user"), flag(spec, "--etcd-password-file")) == ("u", "/p")


def test_every_process_is_tied_and_finds_etcd() -> None:
    for spec in specs():
        assert (flag(spec, "--parent-pid"), flag(spec, "--etcd"), flag(spec, "--name")) == ("77", "h:9", spec.name)
        assert "-P" in spec.command


def test_the_preset_chooses_every_services_policies() -> None:
    chosen = {spec.role: spec for spec in specs(preset="llumnix")}
    assert [flag(chosen[role], "--preset") for role in ("dispatcher", "global_manager", "instance")] == ["llumnix"] * 3


def test_the_manager_is_told_how_to_split_where_it_is_said() -> None:
    managers = [
        next(spec for spec in specs(**said) if spec.role == "global_manager") for said in ({}, {"prefill_share": 0.25})
    ]
    assert "--prefill-share" not in managers[0].command
    assert flag(managers[1], "--prefill-share") == "0.25"


def test_each_dispatcher_writes_an_access_log_of_its_own_where_it_is_wanted() -> None:
    dispatchers = [spec for spec in specs(dispatchers=2, access_log=True) if spec.role == "dispatcher"]
    files = [flag(spec, "--access-log") for spec in dispatchers]
    assert files == ["/d/logs/dispatcher-0.access.jsonl", "/d/logs/dispatcher-1.access.jsonl"]
    assert not any("--access-log" in spec.command for spec in specs())


def test_the_monitor_serves_metrics() -> None:
    assert flag(specs()[0], "--metrics-port") == "4"


def test_doors_keep_their_ports() -> None:
    listens = {spec.role: flag(spec, "--listen") for spec in specs()}
    assert (listens["dispatcher"], listens["monitor"], listens["instance"]) == (
        "127.0.0.1:2",
        "127.0.0.1:3",
        "127.0.0.1:0",
    )


def test_cores_are_shared_among_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert [options(instances=n).threads_each() for n in (1, 3, 8, 20)] == [7, 2, 1, 1]
    assert options(instances=3, threads=5).threads_each() == 5


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(
            LaunchError, match=rf"the HTTP door 127.0.0.1:{port}: address already in use; .*choose another port"
        ):
            claim_port("127.0.0.1", port, "the HTTP door")


def test_any_port_is_free_and_not_taken_twice() -> None:
    first = claim_port("127.0.0.1", 0, "a")
    second = claim_port("127.0.0.1", 0, "b", {first})
    assert first != second


def test_several_ports_follow_the_first() -> None:
    first = claim_port("127.0.0.1", 0, "a")
    assert claim_ports("127.0.0.1", first, 1, "b") == (first,)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        with pytest.raises(LaunchError, match="address already in use"):
            claim_ports("127.0.0.1", held.getsockname()[1], 2, "b")
    assert len(set(claim_ports("127.0.0.1", 0, 4, "c"))) == 4


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(LaunchError, match=r"192.0.2.1"):
        claim_port("192.0.2.1", 5, "the door")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "builtin:huge"}, "builtin:huge.*only built-in model is builtin:tiny"),
        ({"model": "/no/such/model"}, "/no/such/model.*no such directory"),
        ({"etcd": "a:1,https://b:2"}, "write host:port; TLS is chosen by its own flags"),
        ({"etcd": "nonsense"}, "'nonsense' is not host:port"),
        ({"etcd": "127.0.0.1:1"}, "etcd unreachable .*127.0.0.1:1: connection refused"),
        ({"instances": 0}, "--instances 0: .*at least 1"),
        ({"dispatchers": 0}, "--dispatchers 0: .*at least 1"),
        ({"nodes": 3}, "--nodes 3 with --instances 2: .*use fewer nodes"),
        ({"replicate": True}, "--replicate .*say --nodes 2"),
        ({"preset": "nosuch"}, "--preset nosuch: there is none; choose one of .*chunked"),
        ({"prefill_share": 1.0}, "--prefill-share 1.0: say a share between 0 and 1"),
        ({"dtype": "bf16", "deterministic": True}, "--deterministic computes in fp32, not bf16"),
        ({"checkpoint_share": 2.0}, "--checkpoint-share 2: choose a share .* from 0 .* to 0.5"),
        ({"tier_mib": 1 << 30}, r"--tier-mib 1073741824: \d+ MiB of memory are available; choose less"),
        ({"tier_mib": 1 << 29, "nodes": 2}, "--tier-mib 536870912 for each of 2 nodes: "),
        ({"otlp": "nonsense"}, "--otlp nonsense: no endpoint .* give http://HOST:4317"),
        ({"otlp": "http://"}, "--otlp http://: no endpoint"),
    ],
)
def test_what_cannot_start_is_said_before_anything_starts(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(LaunchError, match=complaint):
        preflight.check(options(**changes))


def test_nixl_where_there_is_none_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dunlin.transport.nixl_agent.is_installed", lambda: False)
    with pytest.raises(
        LaunchError, match=r"--transport nixl: .*pip install 'dunlin\[nodes\]', or say --transport sockets"
    ):
        preflight.check(options(transport="nixl"))


def test_the_share_that_is_let_through_is_what_an_instance_takes() -> None:
    preflight.check(options(checkpoint_share=preflight.MOST_CHECKPOINT_SHARE))
    InstanceConfig(checkpoint_share=preflight.MOST_CHECKPOINT_SHARE)
    with pytest.raises(ValueError, match="checkpoint_share"):
        InstanceConfig(checkpoint_share=preflight.MOST_CHECKPOINT_SHARE + 0.01)


def member(name: str = "i", **changes: Any) -> MemberStatus:
    report = InstanceReport(ready=True, plan_version=1)
    return dataclasses.replace(MemberStatus(Address("instance", name, 5), connected=True, instance=report), **changes)


def missing(*members: MemberStatus, http: bool = True) -> tuple[str, ...]:
    return judge(FleetStatus(1, members), ("i", "j"), http).missing


def test_ready_means_every_instance_placeable_and_the_door_open() -> None:
    assert missing(member("i"), member("j")) == ()
    assert missing(member("i")) == ("j",)
    assert missing(member("i"), member("j"), http=False) == ("the HTTP door",)
    assert judge(None, ("i",), True).missing == ("an answer of the monitor",)


@pytest.mark.parametrize(
    "changes",
    [
        {"connected": False},
        {"suspect": True},
        {"instance": None},
        {"instance": InstanceReport(ready=False, plan_version=1)},
        {"instance": InstanceReport(ready=True, plan_version=0)},
    ],
)
def test_an_instance_that_cannot_be_placed_on_is_missing(changes: dict[str, Any]) -> None:
    assert missing(member("i", **changes), member("j")) == ("i",)


def test_with_tls_every_service_gets_a_directory_of_its_own() -> None:
    made = specs(tls=True)
    data_dir = Path(flag(made[0], "--data-dir"))
    assert [flag(spec, "--tls-dir") for spec in made] == [str(data_dir / "tls" / spec.name) for spec in made]
    assert not any("--tls-dir" in spec.command for spec in specs())


def test_keys_go_to_dispatchers_alone() -> None:
    made = specs(keys=Path("/k.json"), dispatchers=2)
    assert [spec.role for spec in made if "/k.json" in spec.command] == ["dispatcher", "dispatcher"]
