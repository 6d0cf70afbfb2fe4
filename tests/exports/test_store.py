"""The cache of exported models: each is written once, and again when its network changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exports import store
from exports.entries import Entry
from exports.store import NotExported, Variant
from zoo.entries import Input, normal


class Exporter:
    """Writes a file, or fails, and counts how often."""

    def __init__(self, error: str = "") -> None:
        self.error, self.calls = error, 0

    def __call__(self, which: Variant, path: Path) -> None:
        self.calls += 1
        path.write_text(str(which))
        if self.error:
            raise NotExported(self.error)


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Variant:
    monkeypatch.setattr(store, "_CACHE", tmp_path / "exports")
    entry = Entry("one", "test", lambda: None, (Input("x", (2,), normal),))
    return Variant(entry, "dynamo", False)


def test_a_model_is_exported_once(variant: Variant) -> None:
    export = Exporter()
    assert store.path(variant, export) == store.path(variant, export) == variant.path
    assert variant.path.read_text() == "one.dynamo"
    assert export.calls == 1


def test_a_changed_network_is_exported_again(variant: Variant) -> None:
    export = Exporter()
    store.path(variant, export)
    changed = replace(variant.entry, inputs=(Input("x", (3,), normal),))
    store.path(replace(variant, entry=changed), export)
    assert export.calls == 2


def test_a_failure_is_met_once_and_leaves_no_file(variant: Variant) -> None:
    export = Exporter("no such operator")
    for _ in range(2):
        with pytest.raises(NotExported, match="no such operator"):
            store.path(variant, export)
    assert export.calls == 1
    assert not list(variant.path.parent.glob("*.onnx"))
    assert not list(variant.path.parent.glob("*.partial"))


def test_an_export_that_was_ended_is_tried_again(variant: Variant) -> None:
    def ended(which: Variant, path: Path) -> None:
        raise NotExported("SIGTERM", lasting=False)

    with pytest.raises(NotExported, match="SIGTERM"):
        store.path(variant, ended)
    assert store.path(variant, Exporter()).is_file()
