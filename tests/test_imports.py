"""The import rule of tests/import_rule.py holds, and each of its parts finds a planted violation."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.import_rule import (
    RULES,
    SERVICES,
    Tree,
    client_knows_the_wire_alone,
    cores_are_pure,
    floors_import_downwards,
    grammars_stay_in_their_package,
    model_knows_no_engine,
    objects_stay_in_their_process,
    policies_know_no_core,
    protobuf_stays_at_the_edge,
    services_meet_on_the_wire,
    simulator_folders_point_down,
    simulator_reads_no_private_state,
    simulator_runs_cores,
    simulator_schedules_nothing,
    sqlite_stays_in_the_store,
    torch_stays_below,
    vocabulary_knows_itself,
    web_stays_at_the_door,
)


@pytest.fixture(scope="module")
def tree(root: Path) -> Tree:
    return Tree(root)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(tree: Tree, rule: Callable[[Tree], list[str]]) -> None:
    assert rule(tree) == []


def test_the_tree_was_read(tree: Tree) -> None:
    """A rule over no files would hold too."""
    assert {f"services.{name}.core" for name in SERVICES} <= set(tree.paths)
    assert {"dunlin.effects", "dunlin.messages", "dunlin.wire"} <= set(tree.paths)


def plant(root: Path, path: str, source: str) -> Tree:
    """A small clean tree with one file replaced."""
    clean = {
        "dunlin/__init__.py": "def __getattr__(name):\n    from dunlin import client\n",
        "dunlin/messages/__init__.py": "from array import array\n",
        "dunlin/effects.py": "from dataclasses import dataclass\n",
        "dunlin/policies/__init__.py": "",
        "dunlin/policies/dispatch.py": "from dunlin.effects import Send\n",
        "dunlin/cost/__init__.py": "",
        "dunlin/cost/models.py": "import math\n",
        "dunlin/cost/store.py": "import sqlite3\n",
        "dunlin/wire/codec.py": "from google import protobuf\nimport grpc.aio\nfrom dunlin.v1 import engine_pb2\n",
        "dunlin/client/__init__.py": "from ..wire import codec\nimport threading\n",
        "dunlin/engine/__init__.py": "",
        "dunlin/engine/decoder/decoder.py": "import torch\n",
        "dunlin/transport/__init__.py": "",
        "services/__init__.py": "",
        "services/instance/__init__.py": "",
        "services/instance/core.py": "from dunlin.policies import dispatch\nfrom .kv import slot_table\n",
        "services/instance/kv/__init__.py": "",
        "services/instance/kv/slot_table.py": "import heapq\n",
        "services/instance/server.py": "import grpc\nimport asyncio\n",
        "services/dispatcher/core.py": "import dunlin.messages\n",
        "services/dispatcher/doors/http/app.py": "from aiohttp import web\n",
        "simulator/cluster/host_cpu.py": "import heapq\nfrom services.instance import core\n",
    }
    for name, text in {**clean, path: source}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Tree(root)


@pytest.mark.parametrize("rule", RULES)
def test_a_clean_tree_pleases_every_rule(tmp_path: Path, rule: Callable[[Tree], list[str]]) -> None:
    assert rule(plant(tmp_path, "services/instance/core.py", "from .kv.slot_table import SlotTable\n")) == []


PLANTED = [
    (protobuf_stays_at_the_edge, "dunlin/engine/decoder/decoder.py", "import grpc\n"),
    (protobuf_stays_at_the_edge, "services/instance/core.py", "def f():\n    from google.protobuf import message\n"),
    (protobuf_stays_at_the_edge, "services/instance/helpers.py", "from google import protobuf\n"),
    (protobuf_stays_at_the_edge, "dunlin/runtime/core_host.py", "import dunlin.v1.engine_pb2\n"),
    (protobuf_stays_at_the_edge, "dunlin/runtime/core_host.py", "from dunlin.v1 import engine_pb2\n"),
    (protobuf_stays_at_the_edge, "services/dispatcher/doors/http/app.py", "import grpc\n"),
    (protobuf_stays_at_the_edge, "services/dispatcher/doors/calls.py", "import grpc\n"),
    (web_stays_at_the_door, "services/dispatcher/server.py", "from aiohttp import web\n"),
    (web_stays_at_the_door, "services/dispatcher/doors/grpc_server.py", "import aiohttp\n"),
    (web_stays_at_the_door, "services/monitor/http.py", "import fastapi\n"),
    (torch_stays_below, "services/instance/server.py", "import torch\n"),
    (torch_stays_below, "dunlin/engine/__init__.py", "from dunlin.engine.decoder.decoder import Model\n"),
    (torch_stays_below, "dunlin/transport/__init__.py", "from dunlin.engine.decoder import decoder\n"),
    (sqlite_stays_in_the_store, "services/monitor/server.py", "import sqlite3\n"),
    (grammars_stay_in_their_package, "dunlin/engine/execution/sequence.py", "import llguidance\n"),
    (objects_stay_in_their_process, "services/dispatcher/doors/preprocess/child.py", "import pickle\n"),
    (vocabulary_knows_itself, "dunlin/messages/engine.py", "from dunlin.policies import dispatch\n"),
    (vocabulary_knows_itself, "dunlin/effects.py", "from .wire import codec\n"),
    (policies_know_no_core, "dunlin/policies/batch.py", "from services.instance.kv.slot_table import Slots\n"),
    (policies_know_no_core, "dunlin/cost/models.py", "from . import store\n"),
    (client_knows_the_wire_alone, "dunlin/client/chat.py", "from dunlin.text import template\n"),
    (client_knows_the_wire_alone, "dunlin/client/chat.py", "def f():\n    import services.instance.core\n"),
    (floors_import_downwards, "dunlin/runtime/core_host.py", "from services.instance import core\n"),
    (floors_import_downwards, "dunlin/limits.py", "import cli.main\n"),
    (floors_import_downwards, "services/monitor/server.py", "def f():\n    from cli import main\n"),
    (floors_import_downwards, "simulator/cluster/world.py", "import cli.main\n"),
    (model_knows_no_engine, "dunlin/model/builtin.py", "def f():\n    import dunlin.engine.decoder.decoder\n"),
    (services_meet_on_the_wire, "services/dispatcher/core.py", "from services.instance.kv.slot_table import Slots\n"),
    (services_meet_on_the_wire, "services/dispatcher/server.py", "from ..instance import core\n"),
    (simulator_runs_cores, "simulator/cluster/world.py", "from services.instance import server\n"),
    (simulator_runs_cores, "simulator/cluster/world.py", "from services.instance.server_attach import Attach\n"),
    (simulator_runs_cores, "simulator/cluster/world.py", "import dunlin.runtime.core_host\n"),
    (simulator_runs_cores, "simulator/cluster/world.py", "def f():\n    from dunlin.wire import codec\n"),
    (simulator_folders_point_down, "simulator/engine/steps.py", "from simulator.cluster import host_cpu\n"),
    (simulator_folders_point_down, "simulator/study/run.py", "import simulator.campaign.trial\n"),
    (simulator_reads_no_private_state, "simulator/study/run.py", "def f(core):\n    return core._steps\n"),
    (
        simulator_reads_no_private_state,
        "simulator/study/run.py",
        "class A:\n    def f(self):\n        self.core._x = 1\n",
    ),
    (simulator_reads_no_private_state, "simulator/study/run.py", "def f(core):\n    return getattr(core, '_steps')\n"),
    (simulator_schedules_nothing, "simulator/study/run.py", "from dunlin.policies.batch import BATCH_POLICIES\n"),
    (simulator_schedules_nothing, "simulator/study/run.py", "def f(tokens):\n    return Place(1, 1, tokens, 1, 1)\n"),
    (cores_are_pure, "services/instance/core.py", "import time\n"),
    (cores_are_pure, "services/instance/core.py", "def f():\n    from os.path import join\n"),
    (cores_are_pure, "services/instance/kv/slot_table.py", "import random\n"),
    (cores_are_pure, "services/instance/core.py", "from services.instance.server import Server\n"),
    (cores_are_pure, "services/dispatcher/core.py", "from services.dispatcher.doors import calls\n"),
    (cores_are_pure, "services/instance/core.py", "from dunlin import client\n"),
    (cores_are_pure, "services/instance/core.py", "from dunlin.cost import store\n"),
    (cores_are_pure, "services/instance/core.py", "async def f():\n    pass\n"),
    (cores_are_pure, "services/instance/kv/slot_table.py", "print('here')\n"),
    (cores_are_pure, "dunlin/policies/dispatch.py", "import numpy\n"),
    (cores_are_pure, "dunlin/policies/__init__.py", "import logging\n"),
    (cores_are_pure, "dunlin/messages/__init__.py", "import datetime\n"),
    (cores_are_pure, "dunlin/effects.py", "import socket\n"),
    (cores_are_pure, "dunlin/cost/__init__.py", "import sqlite3\n"),
    (cores_are_pure, "dunlin/cost/models.py", "if True:\n    import threading\n"),
    (cores_are_pure, "dunlin/__init__.py", "import asyncio\n"),
]


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED)
def test_a_planted_violation_is_found(
    tmp_path: Path, rule: Callable[[Tree], list[str]], path: str, source: str
) -> None:
    complaints = rule(plant(tmp_path, path, source))
    assert complaints
    assert any(path in complaint or "loads" in complaint for complaint in complaints)
