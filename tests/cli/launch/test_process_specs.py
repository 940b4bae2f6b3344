"""Which processes a cluster has, how their ports are claimed, and when it counts as ready."""

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.launch import preflight
from cli.launch.errors import LaunchError
from cli.launch.options import UpOptions, shared_threads
from cli.launch.ports import claim_port, claim_ports, endpoint
from cli.launch.process_specs import ClusterPorts, ProcessSpec, service_specs
from cli.launch.readiness import check_readiness
from dunlin.config.resolve import resolve
from dunlin.config.sources import Given
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, InstanceReport, MemberStatus
from services.settings import TABLES
from tests.engine.build import make_checkpoint

TIER = "kvstore.tier.capacity_bytes"


def options(given: dict[str, Any] | None = None, **changes: Any) -> UpOptions:
    settings = resolve(TABLES, [Given(name, value, "--set") for name, value in (given or {}).items()])
    return dataclasses.replace(UpOptions(Path("/d"), settings), **changes)


def specs(**changes: Any) -> list[ProcessSpec]:
    return list(service_specs(options(**changes), ClusterPorts((1, 11, 21), (2, 12, 22), 3, 4), "h:9", "node", 77))


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


def test_every_process_is_given_all_settings() -> None:
    for spec in specs(config=(Path("/c.toml"),), words=("cluster.preset=llumnix", "cluster.model_name=-my model")):
        given = ["--config=/c.toml", "--set=cluster.preset=llumnix", "--set=cluster.model_name=-my model"]
        assert [word for word in spec.command if word in given] == given


def test_nodes_that_are_played_have_a_kvstore_each_and_share_the_instances() -> None:
    there = [(spec.role, flag(spec, "--node")) for spec in specs(instances=3, nodes=2, managers=2)]
    assert [node for role, node in there if role == "kvstore"] == ["node-0", "node-1"]
    assert [node for role, node in there if role == "instance"] == ["node-0", "node-1", "node-0"]
    assert [node for role, node in there if role == "global_manager"] == ["node-0", "node-1"]


def test_one_node_keeps_its_name() -> None:
    assert {flag(spec, "--node") for spec in specs()} == {"node"}


def test_every_process_knows_the_user_of_etcd() -> None:
    for spec in specs(etcd_user="u", etcd_password_file=Path("/p")):
        assert (flag(spec, "--etcd-user"), flag(spec, "--etcd-password-file")) == ("u", "/p")


def test_every_process_is_tied_and_finds_etcd() -> None:
    for spec in specs():
        assert (flag(spec, "--parent-pid"), flag(spec, "--etcd"), flag(spec, "--name")) == ("77", "h:9", spec.name)
        assert "-P" in spec.command


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
    assert [shared_threads(n) for n in (1, 3, 8, 20)] == [7, 2, 1, 1]


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
        ({"cluster.model": "builtin:huge"}, "builtin:huge.*the built-in models are builtin:tiny and builtin:chat"),
        ({"cluster.model": "/no/such/model"}, "/no/such/model.*no such directory"),
        ({"etcd": "a:1,https://b:2"}, "write host:port; TLS is chosen by its own flags"),
        ({"etcd": "nonsense"}, "'nonsense' is not host:port"),
        ({"etcd": "127.0.0.1:1"}, "etcd unreachable .*127.0.0.1:1: connection refused"),
        ({"instances": 0}, "--instances 0: .*at least 1"),
        ({"dispatchers": 0}, "--dispatchers 0: .*at least 1"),
        ({"nodes": 3}, "--nodes 3 with --instances 2: .*use fewer nodes"),
        ({"kvstore.exchange.replicate": True}, "--replicate .*say --nodes 2"),
        ({"instance.engine.dtype": "bf16", "instance.engine.deterministic": True}, "computes in fp32, not bf16"),
        ({"instance.engine.kv_dtype": "fp8", "instance.engine.deterministic": True}, "keeps KV in fp32, not fp8"),
        ({"instance.engine.ranks": 2, "cluster.lora": ["a=/a"]}, "--tp 2 with --lora: .*drop one of the two"),
        ({TIER: 1 << 50}, r"--tier-mib 1073741824: \d+ MiB of memory are available; choose less"),
        ({TIER: 1 << 49, "nodes": 2}, "--tier-mib 536870912 for each of 2 nodes: "),
        ({"monitor.tracing.otlp_url": "nonsense"}, "--otlp nonsense: no endpoint .* give http://HOST:4317"),
        ({"monitor.tracing.otlp_url": "http://"}, "--otlp http://: no endpoint"),
        ({"dispatcher.tenants.keys_file": "/no/keys.json"}, "--keys /no/keys.json: no such file"),
    ],
)
def test_what_cannot_start_is_said_before_anything_starts(changes: dict[str, Any], complaint: str) -> None:
    given = {name: value for name, value in changes.items() if "." in name}
    asked = options(given, **{name: value for name, value in changes.items() if "." not in name})
    with pytest.raises(LaunchError, match=complaint):
        preflight.check_options(asked)


def test_a_model_that_does_not_divide_is_said_before_anything_starts(tmp_path: Path) -> None:
    model = str(make_checkpoint(tmp_path, vocab=4096))
    preflight.check_options(options({"cluster.model": model, "instance.engine.ranks": 2}))
    with pytest.raises(LaunchError, match=r"--tp 4: .*: 6 attention heads do not divide into 4 ranks"):
        preflight.check_options(options({"cluster.model": model, "instance.engine.ranks": 4}))


def test_too_few_gpus_for_the_ranks_are_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "gpu_names", lambda: ("A100", "A100"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    asked = options({"instance.engine.device": "cuda:1", "instance.engine.ranks": 2})
    with pytest.raises(LaunchError, match=r"--tp 2 --device cuda:1: 2 ranks take a GPU each, from cuda:1 on: 2 are"):
        preflight.check_options(asked)


def test_nixl_where_there_is_none_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dunlin.transport.one_sided.nixl_agent.is_installed", lambda: False)
    with pytest.raises(
        LaunchError, match=r"--transport nixl: .*pip install 'dunlin\[nodes\]', or say --transport sockets"
    ):
        preflight.check_options(options({"kvstore.exchange.transport": "nixl"}))


def member(name: str = "i", **changes: Any) -> MemberStatus:
    report = InstanceReport(ready=True, plan_version=1)
    return dataclasses.replace(MemberStatus(Address("instance", name, 5), connected=True, instance=report), **changes)


def missing(*members: MemberStatus, http: bool = True) -> tuple[str, ...]:
    return check_readiness(FleetStatus(1, members), ("i", "j"), http).missing


def test_ready_means_every_instance_placeable_and_the_door_open() -> None:
    assert missing(member("i"), member("j")) == ()
    assert missing(member("i")) == ("j",)
    assert missing(member("i"), member("j"), http=False) == ("the HTTP door",)
    assert check_readiness(None, ("i",), True).missing == ("an answer of the monitor",)


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
