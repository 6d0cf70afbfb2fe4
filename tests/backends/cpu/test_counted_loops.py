"""Loops whose sizes the run finds, as one native call with the instructions around them: they agree
with ONNX Runtime, guarded, saved, on several threads, and where Python has to take over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
RNG = np.random.default_rng(0)
STEP = """(int64 {i}, bool {c}, float[1, 3] {r}, float[m, 3] {s})
    => (bool {c}2, float[1, 3] {r}2, float[k, 3] {s}2)"""
APPENDS = """c2 = Identity (c)
    s2 = Concat <axis = 0> (s, r)
    low = ReduceMean <keepdims = 1> (s2, ax)
    r2 = Tanh (low)"""
# Some rows of the input, other ones in each iteration.
CHOOSES = """c2 = Identity (c)
    low = ReduceMean <keepdims = 0> (r, axis1)
    above = Greater (means, low)
    some = Compress <axis = 0> (x, above)
    r2 = Neg (r)"""
FROM_NOTHING = """axis1 = Constant <value = int64[1] {1}> ()
    means = ReduceMean <keepdims = 0> (x, axis1)
    none = Slice (x, ax, ax)"""
CONSTANTS = """zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    minus = Constant <value = int64 {-1}> ()
    ax = Constant <value = int64[1] {0}> ()
    three = Constant <value = int64 {3}> ()
    """


def model(body: str, outputs: str = "float y, float z") -> str:
    """Returns a model of a loop over rows."""
    return f"""{HEAD}agraph (float[rows, 3] x, float[1, 3] row, int64 n) => ({outputs}) {{
        {CONSTANTS}
        {body}
    }}"""


def over_list(change: str, after: str = "y = ConcatFromSequence <axis = 0> (q2)") -> str:
    """Returns a loop that changes a sequence of the rows of an input."""
    return f"""{HEAD}agraph (float[4, 3] x, float[1, 3] row, int64 n) => (float y, float z) {{
        {CONSTANTS}
        q = SplitToSequence <axis = 0> (x, one)
        z, q1 = Loop (n, , row, q) <body = inner
            (int64 i, bool c, float[1, 3] r, seq(float) s)
            => (bool c2, float[1, 3] r2, seq(float) s2) {{
            c2 = Identity (c)
            t = Tanh (r)
            {change}
        }}>
        q2 = SequenceInsert (q1, z)
        {after}
    }}"""


LOOPS = {
    "appends": model(
        f"z, y = Loop (n, , row, x) <body = inner {STEP.format(i='i', c='c', r='r', s='s')} "
        f"{{ {APPENDS} }}>"
    ),
    "in front, then an operator": model(
        "z, w = Loop (n, , row, x) <body = inner "
        f"{STEP.format(i='i', c='c', r='r', s='s')} {{ c2 = Identity (c)\n"
        "s2 = Concat <axis = 0> (r, s)\n low = ReduceMax <keepdims = 1> (s2, ax)\n"
        "r2 = Sin (low) }>\n v = Mul (w, w)\n y = ReduceMax <keepdims = 0> (v, ax)"
    ),
    "a stack, and what follows": model(
        """z, w = Loop (n, , row) <body = inner (int64 i, bool c, float[1, 3] r)
            => (bool c2, float[1, 3] r2, float[1, 3] out) {
            c2 = Identity (c)
            r2 = Tanh (r)
            out = Neg (r2)
        }>
        flat = Squeeze (w, axis1)
        y = Concat <axis = 0> (x, flat)""".replace(
            "flat = Sq", "axis1 = Neg (minus2)\n flat = Sq"
        ).replace("z, w = Loop", "minus2 = Constant <value = int64[1] {-1}> ()\n z, w = Loop")
    ),
    "inside another loop": model(
        f"""z = Loop (three, , row) <body = outer (int64 j, bool d, float[1, 3] o)
            => (bool d2, float[1, 3] o2) {{
            d2 = Identity (d)
            p, q = Loop (n, , o, x) <body = inner {STEP.format(i="i", c="c", r="r", s="s")}
                {{ {APPENDS} }}>
            low2 = ReduceMean <keepdims = 1> (q, ax)
            o2 = Add (p, low2)
        }}>
        y = Neg (z)"""
    ),
    "both loops grow it": model(
        f"""z, y = Loop (three, , row, x) <body = outer
            {STEP.format(i="j", c="d", r="o", s="g")} {{
            d2 = Identity (d)
            o2, g2 = Loop (n, , o, g) <body = inner {STEP.format(i="i", c="c", r="r", s="s")}
                {{ {APPENDS} }}>
        }}>"""
    ),
    "an inner loop of as many iterations as the outer one has run": model(
        f"""z, y = Loop (n, , row, x) <body = outer
            {STEP.format(i="j", c="d", r="o", s="g")} {{
            d2 = Identity (d)
            o2, g2 = Loop (j, , o, g) <body = inner {STEP.format(i="i", c="c", r="r", s="s")}
                {{ {APPENDS} }}>
        }}>"""
    ),
    "until its length": model(
        f"""full = Constant <value = int64 {{9}}> ()
        z, y = Loop (n, , row, x) <body = inner {STEP.format(i="i", c="c", r="r", s="s")} {{
            len = Shape (s)
            long = Gather (len, zero)
            c2 = Less (long, full)
            s2 = Concat <axis = 0> (s, r)
            low = ReduceMean <keepdims = 1> (s2, ax)
            r2 = Tanh (low)
        }}>"""
    ),
    "from nothing": model(
        f"""{FROM_NOTHING}
        z, y = Loop (n, , row, none) <body = inner {STEP.format(i="i", c="c", r="r", s="s")} {{
            {CHOOSES}
            s2 = Concat <axis = 0> (s, some)
        }}>"""
    ),
    "two from nothing": model(
        f"""{FROM_NOTHING}
        z, y, w = Loop (n, , row, none, none) <body = inner
            (int64 i, bool c, float[1, 3] r, float[m, 3] s, float[l, 3] t)
            => (bool c2, float[1, 3] r2, float[k, 3] s2, float[j, 3] t2) {{
            {CHOOSES}
            s2 = Concat <axis = 0> (s, some)
            t2 = Concat <axis = 0> (t, r, r2)
        }}>""",
        "float y, float z, float w",
    ),
    "from nothing in each iteration of another loop": model(
        f"""{FROM_NOTHING}
        z, y = Loop (three, , row, none) <body = outer
            {STEP.format(i="j", c="d", r="o", s="g")} {{
            d2 = Identity (d)
            o2, part = Loop (n, , o, none) <body = inner
                {STEP.format(i="i", c="c", r="r", s="s")} {{
                {CHOOSES}
                s2 = Concat <axis = 0> (s, some)
            }}>
            g2 = Concat <axis = 0> (g, part)
        }}>"""
    ),
    "list appends": over_list("r2 = Identity (t)\n s2 = SequenceInsert (s, t)"),
    "list prepends": over_list("r2 = Identity (t)\n s2 = SequenceInsert (s, t, zero)"),
    "list inserts": over_list("r2 = Identity (t)\n s2 = SequenceInsert (s, t, i)"),
    "list pops": over_list(
        "e = SequenceAt (s, zero)\n r2 = Add (t, e)\n s2 = SequenceErase (s, zero)"
    ),
    "list pops, last axis": over_list(
        "e = SequenceAt (s, minus)\n r2 = Add (t, e)\n s2 = SequenceErase (s)",
        "y = ConcatFromSequence <axis = 1> (q2)",
    ),
}


def feeds(text: str, n: int, rows: int) -> dict[str, Array]:
    shape = (4, 3) if "float[4, 3] x" in text else (rows, 3)
    x, row = (RNG.standard_normal(s).astype("f4") for s in (shape, (1, 3)))
    return {"x": x, "row": row, "n": np.array(n)}


def session(text: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)


@pytest.mark.parametrize("name", LOOPS)
def test_they_agree_for_every_number_of_iterations(name: str, answered: list[bool]) -> None:
    text = LOOPS[name]
    reference, made = session(text), clew.compile(onnx.parser.parse_model(text), threads=1)
    most = 4 if "pops" in name else 70
    for n in (0, 1, 2, 3, most, 1):
        for rows in (1, 5, 70):
            given = feeds(text, n, rows)
            wanted, found = reference.run(None, given), made.run(given)
            for one, other in zip(wanted, found.values(), strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    assert all(answered)
    assert len(answered) >= 18


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_touched_beside_buffers(
    name: str, side: GuardSide, answered: list[bool]
) -> None:
    given = onnx.parser.parse_model(LOOPS[name])
    guarded = clew.compile(given, threads=2, diagnostics=clew.Diagnostics(guard=side), cache=False)
    plain = clew.compile(given, threads=1)
    for n, rows in ((0, 1), (1, 3), (4, 2)):
        values = feeds(LOOPS[name], n, rows)
        for one, other in zip(
            plain.run(values).values(), guarded.run(values).values(), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert all(answered)


@pytest.mark.parametrize("name", ["appends", "both loops grow it", "list pops"])
def test_saved(name: str, tmp_path: Path, answered: list[bool]) -> None:
    made = clew.compile(onnx.parser.parse_model(LOOPS[name]), threads=1)
    made.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    values = feeds(LOOPS[name], 3, 2)
    for one, other in zip(made.run(values).values(), loaded.run(values).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert answered == [True] * 2


def test_more_pops_than_elements_are_an_error_of_the_run() -> None:
    made = clew.compile(onnx.parser.parse_model(LOOPS["list pops"]), threads=1)
    with pytest.raises(ClewError, match=r"I320|T110"):
        made.run(feeds(LOOPS["list pops"], 5, 4))
    made.run(feeds(LOOPS["list pops"], 4, 4))


def test_results_own_their_memory() -> None:
    text = LOOPS["both loops grow it"]
    made = clew.compile(onnx.parser.parse_model(text), threads=1)
    for n in (0, 2, 40):
        values = feeds(text, n, 2)
        kept = {name: value.copy() for name, value in values.items()}
        before = made.run(values)
        wanted = {name: value.copy() for name, value in before.items()}
        for value in made.run(feeds(text, n, 2)).values():
            value[...] = 7
        for name, value in before.items():
            np.testing.assert_array_equal(value, wanted[name])
            value[...] = 9
        for name, value in values.items():
            np.testing.assert_array_equal(value, kept[name])
