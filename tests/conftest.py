"""No test writes into the folders of whoever runs it: clients of gateways keep their tokens in a folder of the test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def configuration_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "configuration"
    folder.mkdir(exist_ok=True)
    (folder / "nearcast" / "tokens.json").unlink(missing_ok=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder
