import asyncio
from collections.abc import Iterator

import pytest

from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd


@pytest.fixture(scope="module")
def etcd_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One etcd for a module's tests."""
    with asyncio.Runner() as runner:
        etcd = runner.run(EmbeddedEtcd.start(EmbeddedConfig(tmp_path_factory.mktemp("etcd"))))
        yield etcd.endpoint
        runner.run(etcd.stop())
