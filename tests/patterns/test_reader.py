"""Patterns parsed from text."""

from __future__ import annotations

import pytest

import clew.ops  # noqa: F401  registers the operators
from clew.ir.parser import parse_module
from clew.patterns import find_all, read_pattern
from clew.support.errors import InputError

TEXT = """
clew 1
def @main(%x: f32[2, 8], %w: f32[8, 8]) {
  %0 = nn.matmul(%x, %w)
  %1: f32[8] = const [1, 2, 3, 4, 5, 6, 7, 8]
  %2 = add(%0, %1)
  %3 = nn.relu(%2)
  %4 = multiply(%3, %3)
  %5 = multiply(%4, %2)
  return %5
}
"""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("nn.relu(add(nn.matmul(*, *), constant))", 1),
        ("nn.relu(add(nn.matmul(*, constant), constant))", 0),
        ("nn.matmul(var, var)", 1),
        ("nn.relu", 1),
        ("multiply(...)", 2),
        ("multiply(#1=*, #1)", 1),
        ("nn.relu(*) | tanh(*)", 1),
        ("multiply((nn.relu(*) | multiply(*, *)), *)", 2),
        ("nn.relu or add(...)", 2),
        ("call", 5),
        (" nn.relu( * ) ", 1),
    ],
)
def test_what_is_read_matches(text: str, count: int) -> None:
    assert len(find_all(read_pattern(text), parse_module(TEXT).main)) == count


def test_what_prints_is_read() -> None:
    for text in ("nn.relu(add(nn.matmul(*, *), constant))", "multiply(#1=nn.relu(*), #1)"):
        assert str(read_pattern(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a pattern, at column 1"),
        ("nn.relu(", "expected a pattern, at column 9"),
        ("nn.relu(*", "expected ',', at column 10"),
        ("nn.relu(*))", "ended before this, at column 11"),
        ("nn.relu(!)", "without meaning, at column 9"),
        ("add(#1, *)", "#1 stands for nothing yet, at column 5"),
        ("(" * 200, "nested too deeply"),
    ],
)
def test_what_is_no_pattern(text: str, said: str) -> None:
    with pytest.raises(InputError, match="I145") as raised:
        read_pattern(text)
    assert said in raised.value.message
