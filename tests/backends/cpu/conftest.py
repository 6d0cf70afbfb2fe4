"""What tests of counted segments share."""

from __future__ import annotations

from typing import Any

import pytest

from clew.runtime.counted import CountedSegment


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns a list to which each native call adds whether it had results."""
    found: list[bool] = []
    run = CountedSegment.run

    def noted(self: CountedSegment, arrays: Any) -> Any:
        made = run(self, arrays)
        found.append(made is not None)
        return made

    monkeypatch.setattr(CountedSegment, "run", noted)
    return found
