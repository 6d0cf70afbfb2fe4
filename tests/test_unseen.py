"""What of a name is not seen is written out wherever names are printed."""

from __future__ import annotations

import io
import json

import pytest

from clew.cli.output import emit_json_text, emit_text
from clew.support import markup
from clew.support.consoles import VisibleConsole
from clew.support.tables import table
from clew.support.unseen import visible

HOSTILE = "a\u202eb\x1b[2J\u2069\x9b"
SHOWN = "a\\u202eb\\x1b[2J\\u2069\\x9b"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (HOSTILE, SHOWN),
        ("plain, é, שלום, 層\n\tin lines", "plain, é, שלום, 層\n\tin lines"),
        ("back\rto\x08", "back\\x0dto\\x08"),
        ("half \ud800", "half \\ud800"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_what_is_not_seen_is_written_out(text: str, wanted: str) -> None:
    assert visible(text) == wanted


def test_a_console_writes_names_out_and_keeps_its_styles() -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, force_terminal=True, width=60, highlight=False)
    rows = table("layer")
    rows.add_row(HOSTILE)
    console.print(rows)
    console.print(HOSTILE, style="red", markup=False)
    found = file.getvalue()
    assert found.count(SHOWN) == 2
    assert "\x1b[31m" in found
    assert not set("\u202e\u2069\x9b") & set(found)


def test_texts_and_json_are_printed_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    emit_text(HOSTILE)
    assert capsys.readouterr().out == f"{SHOWN}\n"
    emit_json_text(json.dumps({"name": HOSTILE + "\U000e0041"}, ensure_ascii=False))
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"name": HOSTILE + "\U000e0041"}


def test_html_isolates_names_that_run_from_right_to_left() -> None:
    assert markup.code(HOSTILE).count(SHOWN) == 1
    assert '<bdi dir="ltr">שלום</bdi>' in markup.code("שלום")
    assert "<bdi" not in markup.paragraph("12 µs → 3 µs")
