"""The TypeScript types are those of the schema."""

from pathlib import Path

import wire_types


def test_the_types_are_generated_anew_after_every_change() -> None:
    assert Path(__file__).parents[3] / "frontend" / "src" / "wire.ts" == wire_types.TARGET
    assert wire_types.TARGET.read_text(encoding="utf-8") == wire_types.text(), (
        "python tools/wire_types.py"
    )
