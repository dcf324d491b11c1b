"""Makes the world of gateways importable beside the tests that use it, and each test its own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_world import DataCluster, Worlds, a_world


@pytest.fixture
def world(tmp_path: Path) -> Worlds:
    return lambda: a_world(tmp_path)


@pytest.fixture
def data_cluster() -> type[DataCluster]:
    """Makes data clusters, for tests with a store of their own."""
    return DataCluster
