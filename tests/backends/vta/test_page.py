"""What docs/vta.md shows is what its program prints."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[3] / "docs" / "vta.md"


def test_the_page_shows_what_its_program_prints() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    printed = StringIO()
    with redirect_stdout(printed):
        exec("".join(code for language, code in blocks if language == "python"), names)
    shown = [text for language, text in blocks if not language]
    assert [names["text"]] == [s for s in shown if s.startswith(".buffer")]
    errors = [s for s in shown if s.startswith("error[")]
    assert len(errors) == 1
    assert printed.getvalue().startswith(errors[0])
