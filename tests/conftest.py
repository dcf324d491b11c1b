"""No test writes into the folders of the person who runs it: clients of gateways keep their tokens in a test folder.

And tests of one `xdist_group` run in one process, and no example of a property fails for being slow: the machine may
be busy.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("a busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("a busy machine")


@pytest.fixture(autouse=True)
def configuration_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "configuration"
    folder.mkdir(exist_ok=True)
    (folder / "nearcast" / "tokens.json").unlink(missing_ok=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest-xdist 3.8 notes the group at the end of `_nodeid`, which pytest reads up to 9.1; 9.2 has `_id` instead."""
    for item in items if config.getoption("loadgroup", False) else ():
        noted = getattr(item, "_nodeid", item.nodeid)
        if item.nodeid != noted and hasattr(item, "_id"):
            item._id = type(item._id).parse(noted)
