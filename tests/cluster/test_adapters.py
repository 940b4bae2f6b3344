"""Two adapters beside the model in a real cluster: their texts, by both doors, while engines and instances die."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.model.builtin import resolve_model
from tests.cluster.conftest import Command, eventually
from tests.engine.adapter_files import write_adapter

pytestmark = pytest.mark.cluster

NAMES = ("builtin:tiny", "terse", "kind")
PROMPT = "The harbour at dawn was quiet, and the boats lay still in the grey water."
TOKENS = 60


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """NAME=DIR of each."""
    folder = tmp_path_factory.mktemp("adapters")
    model = resolve_model("builtin:tiny", Path(os.environ["DUNLIN_MODELS"]))
    return [f"{name}={write_adapter(folder / name, model, seed=seed)}" for seed, name in enumerate(NAMES[1:])]


@pytest.fixture(scope="module")
def beside(adapters: list[str]) -> Iterator[ClusterProcess]:
    flags = [flag for each in adapters for flag in ("--lora", each)]
    with ClusterProcess("--instances", "2", "--deterministic", "--slots", "1024", *flags) as made:
        yield made


def ask(client: Client, name: str, **options: object) -> list[int]:
    found = client.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, model=name, **options)  # type: ignore[arg-type]
    return list(found.tokens)


def test_both_doors_serve_the_model_and_its_adapters(beside: ClusterProcess) -> None:
    asked = openai.OpenAI(base_url=f"{beside.http}/v1", api_key="none", max_retries=0, timeout=300)
    assert [one.id for one in asked.models.list()] == [*NAMES]
    texts = {}
    with Client(beside.grpc) as client:
        for name in NAMES:
            said = asked.completions.create(
                model=name, prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
            )
            assert said.model == name
            texts[name] = said.choices[0].text
            own = client.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, model=name)
            assert own.text == said.choices[0].text
    assert len({*texts.values()}) == len(NAMES)


def test_each_says_in_a_crowd_what_it_says_alone_while_engines_die(beside: ClusterProcess) -> None:
    with Client(beside.grpc) as client:
        alone = {name: ask(client, name) for name in NAMES}
        found: list[tuple[str, list[int]]] = []
        threads = [
            threading.Thread(target=lambda name=name: found.append((name, ask(client, name)))) for name in NAMES * 4
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(each.instance.running for each in client.status().members if each.instance) > 3)
        instances = [each for each in client.status().members if each.instance is not None]
        assert instances[0].instance is not None
        os.kill(instances[0].instance.engine_pid, signal.SIGKILL)
        os.kill(instances[1].pid, signal.SIGKILL)
        for thread in threads:
            thread.join(300)
    assert len(found) == len(threads)
    assert [name for name, tokens in found if tokens != alone[name]] == []


def test_a_start_with_an_adapter_that_cannot_be_served_says_why(
    adapters: list[str], command: Command, tmp_path: Path
) -> None:
    done = command("up", "--data-dir", str(tmp_path), "--lora", "nowhere")
    assert (done.returncode, "NAME=DIR" in done.stderr) == (2, True), done.stderr
    taken = adapters[0].partition("=")[2]
    done = command("up", "--data-dir", str(tmp_path), "--lora", f"builtin:tiny={taken}")
    assert done.returncode == 2
    assert "the model itself has that name" in done.stderr
