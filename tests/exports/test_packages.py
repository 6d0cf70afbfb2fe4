"""Trained models inside Python packages: those that are quick to compile. Left out where they
cannot be downloaded.
"""

from __future__ import annotations

import pytest

from exports.packages import MODELS, NotThere, Packaged, checked

_SLOW = ("ch_PP", "dnsmos", "aecmos")  # to compile, or to run: `python -m exports packages`


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_they_agree_with_onnx_runtime(model: Packaged) -> None:
    if any(part in model.name for part in _SLOW):
        pytest.skip("slow: python -m exports packages")
    try:
        found = checked(model)
    except NotThere as error:
        pytest.skip(str(error))
    assert found.status == "agrees", found.error
    assert not found.built_later
