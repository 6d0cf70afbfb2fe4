"""Models with branches and loops that are native, and their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'

MODELS = {
    # A state that changes, one that stays, one that swaps, a stack of each iteration.
    "states": """agraph (float[3,4] x, float[4] w) => (float[3,4] a, float[3,4] b, float[5,3,4] s) {
        n = Constant <value = int64 {5}> ()
        yes = Constant <value = bool {1}> ()
        a, b, kept, s = Loop (n, yes, x, x, w) <body = inner
            (int64 i, bool c, float[3,4] u, float[3,4] v, float[4] k)
            => (bool c2, float[3,4] v2, float[3,4] u2, float[4] k2, float[3,4] row) {
            c2 = Identity (c)
            t = Mul (u, k)
            f = Cast <to = 1> (i)
            u2 = Add (t, f)
            v2 = Tanh (v)
            k2 = Identity (k)
            row = Add (u2, v2)
        }>
    }""",
    # The condition follows from the state; nothing is stacked.
    "until": """agraph (float[2,3] x) => (float[2,3] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (, yes, x) <body = inner
            (int64 i, bool c, float[2,3] u) => (bool c2, float[2,3] u2) {
            half = Constant <value = float {0.5}> ()
            u2 = Mul (u, half)
            most = ReduceMax <keepdims = 0> (u2)
            c2 = Greater (most, half)
        }>
    }""",
    # A value that is a state and a stack, and a stack of what was before.
    "stacked": """agraph (float[4] x) => (float[4] y, float[6,4] s, float[6,4] before) {
        n = Constant <value = int64 {6}> ()
        yes = Constant <value = bool {1}> ()
        y, s, before = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] r, float[4] q) {
            c2 = Identity (c)
            u2 = Sin (u)
            r = Identity (u2)
            q = Identity (u)
        }>
    }""",
    # No iteration: the state is what it was, the stack has no rows.
    "never": """agraph (float[4] x) => (float[4] y, float[0,4] s) {
        n = Constant <value = int64 {0}> ()
        yes = Constant <value = bool {1}> ()
        z = Tanh (x)
        y, s = Loop (n, yes, z) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] r) {
            c2 = Identity (c)
            u2 = Sin (u)
            r = Identity (u2)
        }>
    }""",
    # A loop in a loop, a branch in it, by the number of the iteration.
    "nested": """agraph (float[2,4] x) => (float[2,4] y, float[3,2,4] s) {
        n = Constant <value = int64 {3}> ()
        m = Constant <value = int64 {2}> ()
        yes = Constant <value = bool {1}> ()
        y, s = Loop (n, yes, x) <body = outer
            (int64 i, bool c, float[2,4] u) => (bool c2, float[2,4] u2, float[2,4] row) {
            c2 = Identity (c)
            one = Constant <value = int64 {1}> ()
            odd = Equal (i, one)
            v = If (odd) <
                then_branch = t () => (float[2,4] v1) { v1 = Neg (u) },
                else_branch = e () => (float[2,4] v2) { v2 = Identity (u) }>
            u2, rows = Loop (m, yes, v) <body = inner
                (int64 j, bool d, float[2,4] p) => (bool d2, float[2,4] p2, float[2,4] q) {
                d2 = Identity (d)
                f = Cast <to = 1> (j)
                a = Add (p, f)
                p2 = Sigmoid (a)
                q = Mul (p2, u)
            }>
            row = ReduceSum <keepdims = 0> (rows, axis)
            axis = Constant <value = int64[1] {0}> ()
        }>
    }""",
    # Branches with several results, one passed on, one a constant.
    "branches": """agraph (float[3] x, float[3] z) => (float[3] a, float[3] b, float[3] c) {
        zero = Constant <value = float {0.0}> ()
        sum = ReduceSum <keepdims = 0> (x)
        up = Greater (sum, zero)
        a, b, c = If (up) <
            then_branch = t () => (float[3] a1, float[3] b1, float[3] c1) {
                a1 = Identity (z)
                b1 = Exp (x)
                c1 = Constant <value = float[3] {1.0, 2.0, 3.0}> () },
            else_branch = e () => (float[3] a2, float[3] b2, float[3] c2) {
                a2 = Mul (x, z)
                b2 = Identity (a2)
                c2 = Abs (z) }>
    }""",
    # How often is an input.
    "asked": """agraph (float[4] x, int64 n) => (float[4] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2) {
            c2 = Identity (c)
            u2 = Cos (u)
        }>
    }""",
    # Stacks of rows as many as an input says: rows of which few fit, small ones, a state's.
    "rows": """agraph (float[300] x, int64 n) => (float[300] y, float[k,300] s, bool[k] odd,
        int64[k] count) {
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = int64 {0}> ()
        w = Tanh (x)
        y, m, s, odd, count = Loop (n, yes, w, zero) <body = inner
            (int64 i, bool c, float[300] u, int64 m)
            => (bool c2, float[300] u2, int64 m2, float[300] r, bool o, int64 q) {
            c2 = Identity (c)
            u2 = Cos (u)
            r = Mul (u2, w)
            two = Constant <value = int64 {2}> ()
            half = Mod (i, two)
            o = Cast <to = 9> (half)
            m2 = Add (m, i)
            q = Identity (m2)
        }>
    }""",
    # The state ends the loop. A loop after it stacks, too; another, in it, a number of times.
    "rows_until": """agraph (float[2,600] x) => (float[2,600] y, float[k,2,600] s, float[j,600] t) {
        yes = Constant <value = bool {1}> ()
        y, s = Loop (, yes, x) <body = inner
            (int64 i, bool c, float[2,600] u) => (bool c2, float[2,600] u2, float[2,600] r) {
            half = Constant <value = float {0.5}> ()
            times = Constant <value = int64 {2}> ()
            u1, rows = Loop (times, yes, u) <body = innermost
                (int64 j, bool d, float[2,600] p) => (bool d2, float[2,600] p2, float[2,600] q) {
                d2 = Identity (d)
                p2 = Sin (p)
                q = Mul (p2, half)
            }>
            u2 = Mul (u1, half)
            most = ReduceMax <keepdims = 0> (u2)
            small = Constant <value = float {0.01}> ()
            c2 = Greater (most, small)
            axis = Constant <value = int64[1] {0}> ()
            r = ReduceSum <keepdims = 0> (rows, axis)
        }>
        first = Constant <value = int64[1] {0}> ()
        z = ReduceMax <keepdims = 0> (x, first)
        v, t = Loop (, yes, z) <body = second
            (int64 i, bool c, float[600] u) => (bool c2, float[600] u2, float[600] r) {
            less = Constant <value = float {0.7}> ()
            u2 = Mul (u, less)
            most = ReduceMax <keepdims = 0> (u2)
            small = Constant <value = float {0.001}> ()
            c2 = Greater (most, small)
            r = Exp (u)
        }>
    }""",
    # Rows without elements, and a loop whose branch reads the number of the iteration.
    "rows_of_nothing": """agraph (float[4] x, int64 n) => (float[4] y, float[k,0] s) {
        yes = Constant <value = bool {1}> ()
        y, s = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[0] r) {
            one = Constant <value = int64 {1}> ()
            odd = Equal (i, one)
            u2 = If (odd) <
                then_branch = t () => (float[4] v1) { v1 = Neg (u) },
                else_branch = e () => (float[4] v2) { v2 = Cos (u) }>
            zero = Constant <value = int64[1] {0}> ()
            c2 = Identity (c)
            r = Slice (u2, zero, zero)
        }>
    }""",
}
# The stacks' number of rows is known after the run.
GROWING = ("rows", "rows_until", "rows_of_nothing")


def fixed_order(text: str) -> str:
    """Constants go before what reads them."""
    return text.replace(
        "row = ReduceSum <keepdims = 0> (rows, axis)\n"
        "            axis = Constant <value = int64[1] {0}> ()",
        "axis = Constant <value = int64[1] {0}> ()\n"
        "            row = ReduceSum <keepdims = 0> (rows, axis)",
    )


def model(name: str) -> onnx.ModelProto:
    """Returns one of the models."""
    return onnx.parser.parse_model(HEAD + fixed_order(MODELS[name]))


def feeds(name: str) -> list[dict[str, Array]]:
    """Returns inputs that take several ways."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(3):
        feed: dict[str, Array] = {}
        for value in model(name).graph.input:
            shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            feed[value.name] = rng.standard_normal(shape).astype(np.float32)
        if name in ("until", "rows_until"):
            feed["x"] = np.abs(feed["x"]) * 10.0**number
        if name == "asked":
            feed["n"] = np.array([0, 1, 7][number])
        if name in GROWING and "n" in feed:
            feed["n"] = np.array([23, 0, 2][number])
        if name == "branches":
            feed["x"] = np.abs(feed["x"]) * (-1) ** number
        made.append(feed)
    return made


def outputs(compiled: Any, feed: dict[str, Array]) -> list[Array]:
    return list(compiled.run(feed).values())


def rows_feed(n: int, seed: int = 0) -> dict[str, Array]:
    """Returns inputs of the model `rows` for a number of iterations."""
    x = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    return {"x": x, "n": np.array(n)}


ENDLESS = """agraph (float[4] x) => (float[4] y) {
    yes = Constant <value = bool {1}> ()
    y = Loop (, yes, x) <body = inner
        (int64 i, bool c, float[4] u) => (bool c2, float[4] u2) {
        u2 = Cos (u)
        all = ReduceMax <keepdims = 0> (u2)
        ten = Constant <value = float {10.0}> ()
        c2 = Less (all, ten)
    }>
}"""
ENDLESS_ROWS = (
    ENDLESS.replace("(float[4] y)", "(float[4] y, bool[k] s)")
    .replace("y = Loop", "y, s = Loop")
    .replace("float[4] u2) {", "float[4] u2, bool r) {")
    .replace("c2 = Less (all, ten)", "c2 = Less (all, ten)\n        r = Less (all, ten)")
)
