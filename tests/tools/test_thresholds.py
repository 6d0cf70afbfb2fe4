"""The check of thresholds: it finds those that a module chooses by, and none in clew."""

from __future__ import annotations

import pytest

import thresholds


@pytest.mark.parametrize(
    "text",
    [
        "_LEAST_ROWS: Final = 8", "_LEAST = 8", "_SHARE: Final = -0.4", "_BYTES = 1 << 18",
        "_VECTORS: Final = (1, 2, 4)", "_BY_TILE = {2: (80, 45)}", "_A, _B = 16, 2",
        "_MOST = 2 * OTHER", "class P:\n    min_rows: int = 16", "class P:\n    vectors = 8",
        "def f(n): return n < 17", "def f(n, m): return n <= 1.5 * m", "x = a if b > 100 else c",
        "def f(n): return n >= 1 << 14",
    ],
)  # fmt: skip
def test_what_is_a_threshold(text: str) -> None:
    assert len(list(thresholds.complaints("x.py", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from clew.cost.policy.layouts import ROWS_TO_PACK", "_NAMES: Final = ('a', 'b')",
        "_MOST: Final = max(VECTORS)", "_sixth = near(1 / 6)", "_IS_ON = True",
        "class P:\n    opt_level: ClassVar[int] = 3", "class P:\n    first: int = 0",
        "class P:\n    lanes: int = -1", "class P:\n    x: int", "def f(n): return n > 1",
        "def f(n): return n == 40", "def f(n): return n % 32 == 0", "def f(a): x = 50; return x",
    ],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    assert not list(thresholds.complaints("x.py", text))


def test_clew_has_none_and_each_exception_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert thresholds.main() == 0, capsys.readouterr().out
    needed = set(thresholds.EXCEPTIONS)
    monkeypatch.setattr(thresholds, "EXCEPTIONS", {})
    for file in sorted({file for file, _ in needed}):
        text = (thresholds.SOURCE / file).read_text(encoding="utf-8")
        needed -= {(file, name) for _, name in thresholds.complaints(file, text)}
    assert not needed
