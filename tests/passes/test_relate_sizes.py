"""Sizes of states: those that grow alike are named in terms of one."""

from __future__ import annotations

import pytest

from clew.ir.expr import While
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import TensorType, TupleType
from clew.ir.visit import post_order
from clew.passes.manager import PassManager
from clew.passes.simplify.relate_sizes import RelateSizes

LOOP = """clew 1
def @main(%a: f32[{first}, 4], %b: f32[{second}, 4], %n: i64[]) -> (f32[?8, 4], f32[?9, 4]) {{
  %0 = fn(%i: i64[], %s: f32[?0, 4], %t: f32[?1, 4], %k: i64[]) -> bool[] {{
    %0: bool[] = less(%i, %k)
    return %0
  }}
  %1 = fn(%i: i64[], %s: f32[?0, 4], %t: f32[?1, 4], %k: i64[])
      -> (f32[?0 + {s}, 4], f32[?1 + {t}, 4], i64[]) {{
    %0: f32[{s}, 4] = const splat 1
    %1: f32[{t}, 4] = const splat 2
    %2: f32[?0 + {s}, 4] = concatenate(%s, %0, axis=0)
    %3: f32[?1 + {t}, 4] = concatenate(%t, %1, axis=0)
    %4: (f32[?0 + {s}, 4], f32[?1 + {t}, 4], i64[]) = (%2, %3, %k)
    return %4
  }}
  %2: (f32[?8, 4], f32[?9, 4], i64[]) = while %0 do %1 (%a, %b, %n)
  %3: f32[?8, 4] = %2[0]
  %4: f32[?9, 4] = %2[1]
  %5: (f32[?8, 4], f32[?9, 4]) = (%3, %4)
  return %5
}}
"""


def states(module: Module) -> tuple[list[str], list[str]]:
    """Returns the sizes of the loop's states before and after an iteration, with `?` for the
    smallest name.
    """
    (loop,) = (n for n in post_order(module.main, into_functions=True) if isinstance(n, While))
    assert isinstance(loop.body.body.type, TupleType)
    before = [p.type.shape[0] for p in loop.body.params[1:3] if isinstance(p.type, TensorType)]
    after = [t.shape[0] for t in loop.body.body.type.fields[:2] if isinstance(t, TensorType)]
    return [str(dim) for dim in before], [str(dim) for dim in after]


@pytest.mark.parametrize(
    ("first", "second", "s", "t", "before", "after"),
    [
        ("2", "2", 1, 1, ["?0", "?0"], ["?0 + 1", "?0 + 1"]),
        ("2", "5", 1, 1, ["?0", "?0 + 3"], ["?0 + 1", "?0 + 4"]),
        ("5", "2", 1, 1, ["?1 + 3", "?1"], ["?1 + 4", "?1 + 1"]),
        ("n", "n", 3, 3, ["?0", "?0"], ["?0 + 3", "?0 + 3"]),
        ("n", "n + 1", 1, 1, ["?0", "?0 + 1"], ["?0 + 1", "?0 + 2"]),
        ("2", "2", 1, 2, ["?0", "?1"], ["?0 + 1", "?1 + 2"]),
        ("n", "m", 1, 1, ["?0", "?1"], ["?0 + 1", "?1 + 1"]),
    ],
)
def test_sizes_that_grow_alike(
    first: str, second: str, s: int, t: int, before: list[str], after: list[str]
) -> None:
    module = parse_module(LOOP.format(first=first, second=second, s=s, t=t))
    related = PassManager([RelateSizes()]).run(module)
    assert states(related) == (before, after)
    assert (related is module) == (before == ["?0", "?1"])
