"""Writes `docs/from-scratch.md` from the program `docs/from_scratch.py`.

python tools/weave.py           writes the page
python tools/weave.py --check   fails if the page is out of date

Comments between blank lines become text. The code between them becomes blocks, each followed by
what it prints.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PROGRAM: Final = DOCS / "from_scratch.py"
PAGE: Final = DOCS / "from-scratch.md"
_TEXT: Final = re.compile(r"(?:\A|(?<=\n\n))((?:#.*\n)+)(?=\n|\Z)")


def page() -> str:
    """Runs the program and returns the text of the page."""
    source = PROGRAM.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    parts: list[str] = []
    line = 0
    for position, part in enumerate(_TEXT.split(source)):
        if position % 2:
            parts.append(re.sub(r"^# ?", "", part, flags=re.MULTILINE))
        elif part.strip():
            parts.append(_fenced("python", part))
            # Behind the lines before it, so that errors name lines of the program.
            printed = _run("\n" * line + part, names)
            if printed:
                parts.append(_fenced("", printed))
        line += part.count("\n")
    return "\n".join(parts)


def _run(code: str, names: dict[str, Any]) -> str:
    """Runs code, which changes `names`, and returns what it prints."""
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, str(PROGRAM), "exec"), names)
    return printed.getvalue()


def _fenced(language: str, text: str) -> str:
    body = text.strip("\n")
    return f"```{language}\n{body}\n```\n"


def main() -> None:
    """Writes or checks the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/from-scratch.md is out of date: run python tools/weave.py")


if __name__ == "__main__":
    main()
