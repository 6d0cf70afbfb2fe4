"""Operators of the tests' own, and random modules over them with names as odd as they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from clew.ir.dims import Dim, SymDim, dim_max, dim_min
from clew.ir.expr import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.module import Module
from clew.ir.types import (
    DTYPES,
    FunctionType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
)
from clew.trace.span import Source, Span


@dataclass(frozen=True)
class TestOp:
    """Takes anything and returns the type of its first input, or `f32[]`."""

    __test__ = False

    name: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, attrs: Mapping[str, Any]) -> Attrs:
        return Attrs({**self.defaults, **attrs})

    def infer(self, args: Sequence[Expr], attrs: Attrs) -> Type:
        return args[0].type if args else TensorType((), "f32")


OPS = {
    op.name: op
    for op in (
        TestOp("add"),
        TestOp("nn.relu"),
        TestOp("const"),
        TestOp("2d op\n"),
        TestOp("clip", {"min": None, "max": 1.0, "axes": (0, 1), "mode": "edge"}),
    )
}


def lookup(name: str) -> TestOp:
    return OPS[name]


NAMES = st.one_of(
    st.sampled_from(
        ["x", "input.1", "3", "x#1", "if", "", " ", '"', "`", "\\", "a\nb", "é", "\u2028", "\ud800"]
    ),
    st.text(max_size=6),
)
SOURCES = st.builds(
    Source,
    layer=NAMES,
    op=NAMES,
    frontend=st.one_of(st.just("onnx"), NAMES),
    kind=st.one_of(st.sampled_from(["layer", "parameter", "input", "edit"]), NAMES),
    output=st.one_of(st.none(), st.integers(0, 9)),
)
SPANS = st.lists(SOURCES, max_size=3).map(Span)
SYMBOLS = st.one_of(st.sampled_from(["batch", "seq", "?7", "min", "true", "dim"]), NAMES).map(
    SymDim.symbol
)


def _combined(dims: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pairs = st.tuples(dims, dims)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.tuples(SYMBOLS, st.integers(2, 5)).map(lambda p: (p[0] + 1) // p[1]),
        st.tuples(dims, SYMBOLS).map(lambda p: p[0] % p[1]),
        pairs.map(lambda p: dim_min(*p)),
        pairs.map(lambda p: dim_max(*p)),
    )


SYMBOLIC = st.recursive(st.one_of(SYMBOLS, st.integers(1, 9)), _combined, max_leaves=4)
DIMS = SYMBOLIC.filter(lambda d: isinstance(d, SymDim) or d >= 0)
TENSORS = st.builds(
    TensorType,
    st.lists(DIMS, max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.one_of(st.just(""), st.just("NCHW16c"), NAMES),
)
TYPES = st.recursive(
    TENSORS,
    lambda types: st.one_of(
        st.lists(types, max_size=2).map(lambda ts: TupleType(tuple(ts))),
        st.tuples(st.lists(types, max_size=2), types).map(
            lambda p: FunctionType(tuple(p[0]), p[1])
        ),
        types.map(SequenceType),
        types.map(OptionalType),
    ),
    max_leaves=3,
)
VALUES = st.recursive(
    st.one_of(
        st.integers(-(2**40), 2**40),
        st.floats(),
        st.booleans(),
        st.none(),
        NAMES,
        SYMBOLIC,
    ),
    lambda values: st.lists(values, max_size=3).map(tuple),
    max_leaves=4,
)
ATTRS = st.dictionaries(NAMES, VALUES, max_size=3)
NUMPY = [
    np.bool_, np.int8, np.int64, np.uint64, np.float16, np.float32, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn,
]  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Draws arrays of any bits, splats among them."""
    dtype = np.dtype(draw(st.sampled_from(NUMPY)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape))
    raw = draw(st.binary(min_size=dtype.itemsize * count, max_size=dtype.itemsize * count))
    data = np.frombuffer(raw, dtype=np.uint8)
    if dtype == np.bool_:
        data = data & 1
    if dtype == np.dtype(ml_dtypes.int4):
        return (data.astype(np.int64) % 16 - 8).astype(dtype).reshape(shape)
    array = data.view(dtype).reshape(shape)
    if count and draw(st.booleans()):
        return (
            np.broadcast_to(array.flat[0], shape).astype(dtype)
            if draw(st.booleans())
            else np.broadcast_to(array.reshape(-1)[:1].reshape(()), shape)
        )
    return array


@st.composite
def functions(draw: st.DrawFn, depth: int = 2) -> Function:
    """Draws a closed function of a few nodes of every kind, some shared."""
    names, spans = draw(st.lists(NAMES, max_size=3)), SPANS
    params = [Var(n, draw(TYPES), span=draw(spans)) for n in names]
    pool: list[Expr] = list(params)
    pool.append(Constant(draw(arrays()), name=draw(NAMES), span=draw(spans)))

    def some(limit: int = 3) -> list[Expr]:
        return draw(st.lists(st.sampled_from(pool), max_size=limit))

    for _ in range(draw(st.integers(0, 6))):
        span = draw(spans)
        one = draw(st.sampled_from(pool))
        match draw(st.integers(0, 8)):
            case 0 | 1:
                op = draw(st.sampled_from(sorted(OPS)))
                pool.append(Call(OPS[op], some(), draw(ATTRS), span=span))
            case 2:
                pool.append(Tuple([one, *some(2)], span=span))
                pool.append(TupleGetItem(pool[-1], 0, span=draw(spans)))
            case 3:
                pool.append(Constant(draw(arrays()), name=draw(NAMES), span=span))
            case 4 if depth:
                inner = draw(functions(depth - 1))
                if all(any(p.type == e.type for e in pool) for p in inner.params):
                    given = [next(e for e in pool if e.type == p.type) for p in inner.params]
                    pool.append(Call(inner, given, draw(ATTRS), span=span))
            case 5:
                var = Var(draw(NAMES), one.type, span=draw(spans))
                pool.append(Let(var, one, Tuple([var, one]), span=span))
            case 6:
                type_ = FunctionType((one.type,), draw(TYPES))
                pool.append(GlobalVar(draw(NAMES), type_, span=draw(spans)))
                pool.append(Call(pool[-1], [one], span=span))
            case 7 if depth:
                cond = Constant(np.array(draw(st.booleans())), span=draw(spans))
                then, orelse = (
                    Function([Var("a", one.type)], Constant(draw(st.just(np.ones(n + 1)))))
                    for n in range(2)
                )
                pool.append(If(cond, then, orelse, [one], span=span))
            case 8 if depth and isinstance(one.type, TensorType):
                step = Var("i", TensorType((), "i64"))
                state = Var("s", one.type)
                again = Function([step, state], Constant(np.array(True)))
                body = Function(
                    [Var("i", TensorType((), "i64")), (s := Var("s", one.type))], Tuple([s, s])
                )
                trips = draw(st.one_of(st.none(), DIMS))
                pool.append(While(again, body, [one], scans=1, trips=trips, span=span))
    result = draw(st.sampled_from(pool))
    if draw(st.booleans()):
        result = Tuple(pool)
    return Function(params, result, draw(ATTRS), span=draw(spans))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """Draws modules of one to three functions."""
    others = draw(st.dictionaries(NAMES.filter(lambda n: n != "main"), functions(1), max_size=2))
    return Module({"main": draw(functions()), **others})
