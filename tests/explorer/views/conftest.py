"""Sessions of models of the zoo and of `view_models`, each made once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zoo
from clew.explorer.session import Session

sys.path.insert(0, str(Path(__file__).parent))

import view_models as models


@pytest.fixture(scope="session")
def zoo_session() -> Callable[[str], Session]:
    """Sessions of models of the zoo."""
    known: dict[str, Session] = {}

    def get(name: str) -> Session:
        if name not in known:
            path = Path(zoo.path(name))
            known[name] = models.session_of(path, path.parent)
        return known[name]

    return get


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of a model with branches, a loop and a function, and layers that go at import."""
    return models.session_of(models.control_model(), tmp_path_factory.mktemp("control"))


@pytest.fixture(scope="session")
def block(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of a convolution, batch norm and relu."""
    return models.session_of(models.conv_block(), tmp_path_factory.mktemp("block"))
