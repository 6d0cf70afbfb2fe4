"""Versions of code, which are parts of the keys of caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import version

PACKAGE = Path(version.__file__).parent


@pytest.mark.parametrize(
    ("edited", "matters"),
    [
        ("codegen/kernel.py", True),
        ("ir/dims.py", True),
        ("schedules/library/panels.py", True),
        ("explorer/app.py", False),
    ],
)
def test_edits_of_deciding_code_change_the_version_of_native_code(
    edited: str, matters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (PACKAGE / edited).is_file()  # it is not about a file of the past
    file = tmp_path / edited
    file.parent.mkdir(parents=True)
    file.write_text("a = 1\n")
    monkeypatch.setattr(version, "__file__", str(tmp_path / "version.py"))
    monkeypatch.setattr(version, "source_states", version.source_states.__wrapped__)
    wholes = (version.codegen_version.__wrapped__, version.package_version.__wrapped__)
    before, whole_before = (whole() for whole in wholes)
    file.write_text("a = 10\n")
    after, whole_after = (whole() for whole in wholes)
    assert (before != after) == matters
    assert whole_before != whole_after
