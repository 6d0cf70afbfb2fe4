"""The list of networks: complete, drawable, and readable without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from exports import store
from exports.entries import EXPORTERS, Entry

ENTRIES = list(store.catalog().values())


def test_the_list_needs_no_torch() -> None:
    program = (
        "import sys; from exports import store; store.catalog(); print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert found.stdout == "False\n"


def test_there_are_enough_of_each_family() -> None:
    assert len(ENTRIES) > 300
    wanted = {"detection", "segmentation", "video", "speech", "generative", "recurrent"}
    assert wanted | {"state-space"} <= set(store.families())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_draws_what_it_declares_anew_for_each_seed(entry: Entry) -> None:
    assert set(entry.exporters) <= set(EXPORTERS)
    names = {dim for spec in entry.inputs for dim in spec.shape if isinstance(dim, str)}
    assert names == set(entry.dims)
    assert set(entry.others) == names
    assert entry.description == entry.description
    for sizes in ({}, entry.others):
        drawn = entry.draw(1, sizes)
        for spec in entry.inputs:
            shape = [{**entry.dims, **sizes}[d] if isinstance(d, str) else d for d in spec.shape]
            assert list(drawn[spec.name].shape) == shape
    one, same, other = entry.draw(1), entry.draw(1), entry.draw(2)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_names_and_families_select() -> None:
    assert [e.name for e in store.selected(["swin"])] == ["swin"]
    assert {e.family for e in store.selected(["recurrent"])} == {"recurrent"}
    with pytest.raises(KeyError, match="no_such"):
        store.selected(["no_such"])
    assert str(store.variant("swin.dynamo.dynamic")) == "swin.dynamo.dynamic"
