"""What is said where a package is missing can be copied into a shell."""

import shlex

from dunlin.runtime.extras import CPU_INDEX, missing_package_text


def test_it_names_what_is_missing_and_a_command_without_cuda() -> None:
    said, _, command = missing_package_text("torch", "grpc_health").partition(": ")
    assert said == "this installation lacks torch, grpc_health"
    assert shlex.split(command) == ["pip", "install", "dunlin[server]", "--extra-index-url", CPU_INDEX]
    assert "'dunlin[server,otel]'" in missing_package_text("opentelemetry", extra="server,otel")
