"""Every construct of the language, matching and not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var, While
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.patterns import (
    Pattern,
    find_all,
    has_attr,
    has_dtype,
    has_kind,
    has_shape,
    has_type,
    is_composite,
    is_constant,
    is_expr,
    is_function,
    is_if,
    is_op,
    is_splat,
    is_tuple,
    is_tuple_get_item,
    is_var,
    match,
    rule,
    wildcard,
)
from clew.support.errors import InputError

F = TensorType((4, 4), "f32")
x, y = Var("x", F), Var("y", F)


def op(name: str, *args: Expr, **attrs: Any) -> Call:
    return get_op(name)(*args, **attrs)


def fits(pattern: Pattern, node: Expr) -> bool:
    return match(pattern, node) is not None


def test_variables_by_name() -> None:
    assert fits(is_var("x"), x)
    assert not fits(is_var("x"), y)
    assert not fits(is_var("x"), op("exp", x))


def test_a_given_expression_matches_by_structure() -> None:
    wanted = is_expr(op("add", op("exp", x), Constant(np.float32(2))))
    assert fits(wanted, op("add", op("exp", x), Constant(np.float32(2))))
    assert not fits(wanted, op("add", op("exp", y), Constant(np.float32(2))))
    assert not fits(wanted, op("add", op("exp", x), Constant(np.float32(3))))
    assert not fits(wanted, op("add", op("log", x), Constant(np.float32(2))))
    assert not fits(wanted, x)
    rows = op("sum", x, axes=(0,))
    assert fits(is_expr(rows), op("sum", x, axes=(0,)))
    assert not fits(is_expr(rows), op("sum", x, axes=(1,)))
    found = match(is_op("negative")(wanted), op("negative", wanted.expr))  # type: ignore[attr-defined]
    assert found is not None
    assert len(found.nodes) == 4


def test_a_given_expression_tells_sharing() -> None:
    once = op("exp", x)
    shared, apart = op("add", once, once), op("add", op("exp", x), op("exp", x))
    assert fits(is_expr(shared), op("add", once, once))
    assert not fits(is_expr(shared), apart)
    assert not fits(is_expr(apart), shared)


def test_tuples() -> None:
    pair = Tuple([x, op("exp", y)])
    a = wildcard()
    found = match(is_tuple([a, is_op("exp")(wildcard())]), pair)
    assert found is not None
    assert found[a] is x
    assert fits(is_tuple(), pair)
    assert not fits(is_tuple([a]), pair)
    assert not fits(is_tuple([is_op("exp")(wildcard()), a]), pair)
    assert not fits(is_tuple(), x)
    assert fits(is_tuple_get_item(is_tuple(), 1), TupleGetItem(pair, 1))
    assert not fits(is_tuple_get_item(is_tuple(), 0), TupleGetItem(pair, 1))
    assert not fits(is_tuple_get_item(is_op("split").any_args()), TupleGetItem(pair, 1))


def branch(name: str) -> Function:
    p = Var("p", F)
    return Function([p], op(name, p))


def test_branches() -> None:
    cond = Var("c", TensorType((), "bool"))
    node = If(cond, branch("exp"), branch("log"), [x])
    a = wildcard()
    found = match(is_if(is_var("c"), is_op("exp")(is_var()), is_op("log")(is_var()), [a]), node)
    assert found is not None
    assert found[a] is x
    assert fits(is_if(), node)
    assert not fits(is_if(is_constant()), node)
    assert not fits(is_if(then=is_op("log")(wildcard())), node)
    assert not fits(is_if(orelse=is_op("exp")(wildcard())), node)
    assert not fits(is_if(args=[]), node)
    assert not fits(is_if(), x)


def test_functions_and_their_calls() -> None:
    p = Var("p", F)
    body = op("multiply", p, op("sigmoid", p))
    function = Function([p], body, {"composite": "silu", "name": "silu"})
    call = Call(function, [op("exp", x)])
    a = wildcard()
    silu = a * is_op("sigmoid")(a)
    assert fits(is_function(silu), function)
    assert fits(is_function(silu, [is_var("p")]), function)
    assert fits(is_function(silu).has_attr(composite="silu"), function)
    assert not fits(is_function(silu).has_attr(composite="gelu"), function)
    assert not fits(is_function(silu, []), function)
    assert not fits(is_function(is_op("exp")(a)), function)
    assert not fits(is_function(), call)
    inner = is_op("exp")(wildcard())
    assert fits(is_function(silu)(inner), call)
    assert fits(is_function().any_args(), call)
    assert not fits(is_function(silu)(is_op("log")(wildcard())), call)
    assert not fits(is_function(silu)(inner, inner), call)
    assert not fits(is_function().any_args(), op("exp", x))
    assert fits(is_composite("silu"), call)
    assert fits(is_composite("silu", inner, body=silu), call)
    assert not fits(is_composite("gelu"), call)
    assert not fits(is_composite("silu", is_var()), call)
    assert not fits(is_composite("silu", body=is_op("exp")(a)), call)


@pytest.mark.parametrize(
    ("pattern", "method", "good", "bad"),
    [
        (has_type(F), wildcard().has_type(F), x, op("sum", x, axes=(1,))),
        (has_shape(None, 4), wildcard().has_shape(None, 4), x, op("sum", x, axes=(1,))),
        (has_dtype("f32"), wildcard().has_dtype("f32"), x, op("cast", x, dtype="f64")),
        (
            has_kind("elementwise", "broadcast"),
            wildcard().has_kind("elementwise", "broadcast"),
            op("exp", x),
            op("sum", x, axes=(1,)),
        ),
        (has_kind("reduction"), wildcard().has_kind("reduction"), op("sum", x, axes=(1,)), x),
        (has_attr(axes=(0,)), wildcard().has_attr(axes=[0]), op("sum", x, axes=(0,)), x),
    ],
)
def test_constraints_as_functions_and_methods(
    pattern: Pattern, method: Pattern, good: Expr, bad: Expr
) -> None:
    for p in (pattern, method):
        assert fits(p, good)
        assert not fits(p, bad)


ARITHMETIC = [
    (lambda a, b: a + b, "add", False),
    (lambda a, b: a - b, "subtract", False),
    (lambda a, b: a * b, "multiply", False),
    (lambda a, b: a / b, "divide", False),
    (lambda a, b: a**b, "power", False),
    (lambda a, _: a + 2, "add", True),
    (lambda a, _: a - 2.0, "subtract", True),
    (lambda a, _: a * 2.0, "multiply", True),
    (lambda a, _: a / 2, "divide", True),
    (lambda a, _: a**2.0, "power", True),
]


@pytest.mark.parametrize(("build", "name", "with_number"), ARITHMETIC)
def test_arithmetic_on_patterns(build: Any, name: str, with_number: bool) -> None:
    a, b = is_var("x"), is_var("y")
    two = Constant(np.float32(2))
    good = op(name, x, two if with_number else y)
    assert fits(build(a, b), good)
    assert not fits(build(a, b), op(name, x, Constant(np.float32(3))))
    assert not fits(build(a, b), op("maximum", x, y))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda a: 2 + a, "add"),
        (lambda a: 2 - a, "subtract"),
        (lambda a: 2 * a, "multiply"),
        (lambda a: 2 / a, "divide"),
        (lambda a: 2**a, "power"),
    ],
)
def test_a_number_on_the_left(build: Any, name: str) -> None:
    assert fits(build(is_var("x")), op(name, Constant(np.float32(2)), x))
    assert not fits(build(is_var("x")), op(name, Constant(np.float32(1)), x))
    if name not in ("add", "multiply"):
        assert not fits(build(is_var("x")), op(name, x, Constant(np.float32(2))))


def test_negation_and_matrix_products() -> None:
    assert fits(-is_var(), op("negative", x))
    assert not fits(-is_var(), op("exp", x))
    assert fits(is_var("x") @ is_var("y"), op("nn.matmul", x, y))
    assert not fits(is_var("x") @ is_var("y"), op("nn.matmul", y, x))
    with pytest.raises(TypeError):
        wildcard() + "text"  # type: ignore[operator]


def test_numbers_are_those_of_the_dtype() -> None:
    """0.1 is another number in f32 than in f64; 0.5 is none among whole numbers."""
    assert fits(is_splat(0.1), Constant(np.float32(0.1)))
    assert fits(is_splat(0.1), Constant(np.float64(0.1)))
    assert not fits(is_splat(0.1), Constant(np.float32(0.1001)))
    assert not fits(is_splat(0.5), Constant(np.int64(0)))
    assert not fits(is_splat(), Constant(np.arange(3)))


def test_a_rejected_match_blocks_nothing() -> None:
    """A test is part of the search: where it fails, another order or alternative is tried."""
    a, b = wildcard(), wildcard()
    second = (a + b).where(lambda found: found[a] is y)
    found = match(second, op("add", x, y))
    assert found is not None
    assert (found[a], found[b]) == (y, x)
    either = (is_op("exp")(a).check(lambda n: False)) | is_op("exp")(b)
    found = match(either, op("exp", x))
    assert found is not None
    assert b in found
    assert a not in found


def test_patterns_are_readable() -> None:
    a, b = wildcard(), is_constant()
    assert repr(is_op("nn.relu")(a + b)) == "nn.relu(add(*, constant))"
    assert repr(a * is_op("sigmoid")(a)) == "multiply(#1=*, sigmoid(#1))"
    assert (
        repr(is_op("sum").any_args().has_attr(keepdims=True)) == "sum(...).has_attr(keepdims=True)"
    )
    assert repr(-a | b) == "(negative(*) | constant)"
    assert repr(a * 2.0) == "multiply(*, splat(2.0))"
    assert repr(is_tuple_get_item(is_op("split")(a), 1)) == "split(*)[1]"
    assert repr(is_function(a)(b)) == "fn(...) { * }(constant)"
    assert repr(is_if(is_var())) == "if var then * else * (...)"
    assert (
        repr(wildcard().has_shape(1, None).has_dtype("f32")) == "*.has_shape(1, *).has_dtype(f32)"
    )
    shared = a
    for _ in range(200):  # as text this doubles with each step, were it not numbered
        shared = shared + shared
    assert len(repr(shared)) < 10_000


def test_numbers_and_nodes_are_patterns_and_nothing_else() -> None:
    two = Constant(np.float32(2))
    assert fits(is_op("maximum")(wildcard(), 2.0), op("maximum", x, two))
    assert not fits(is_op("maximum")(wildcard(), 3.0), op("maximum", x, two))
    assert fits(is_op("exp")(op("log", x)), op("exp", op("log", x)))
    assert not fits(is_op("exp")(op("log", y)), op("exp", op("log", x)))
    for build in (
        lambda: is_op("exp")(is_op("log")),  # type: ignore[arg-type]
        lambda: is_tuple(["x"]),  # type: ignore[list-item]
        lambda: rule(is_op("exp")),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError) as caught:
            build()
        assert caught.value.code == "I026"


def test_a_pattern_without_a_node_is_named() -> None:
    a, b = is_op("exp")(wildcard()), is_op("log")(wildcard())
    found = match(a | b, op("exp", x))
    assert found is not None
    assert a in found
    assert b not in found
    assert found.get(b) is None
    with pytest.raises(KeyError, match="log"):
        found[b]


def test_any_bracketing_bounds_its_search() -> None:
    """Patterns with more ways to fail than there is time for end all the same."""
    leaves = [wildcard() for _ in range(8)]
    total: Pattern = leaves[0]
    for leaf in leaves[1:]:
        total = total + leaf
    node: Expr = x
    for n in range(30):
        node = op("add", node, op("exp", Constant(np.full((4, 4), n, "f4"))))
    found = match(total.where(lambda _: False), node)
    assert found is None
    explained = total.where(lambda _: False).explain(node)
    assert "gave up" in str(explained)


def test_deep_patterns_do_not_recurse() -> None:
    pattern: Pattern = wildcard()
    node: Expr = x
    for _ in range(5000):
        pattern = is_op("add")(is_op("exp")(pattern), is_constant())
        node = op("add", op("exp", node), Constant(np.float32(1)))
    assert fits(pattern, node)
    assert not fits(pattern, node.args[0])  # type: ignore[attr-defined]


def test_loops_are_not_branches() -> None:
    i, s = Var("i", TensorType((), "i64")), Var("s", F)
    limit = op("less", i, Constant(np.int64(3)))
    loop = While(Function([i, s], limit), Function([i, s], Tuple([op("exp", s)])), [x])
    assert not fits(is_if(), loop)
    assert fits(is_tuple_get_item(wildcard(), 0), TupleGetItem(loop, 0))
    function = Function([x], TupleGetItem(loop, 0))
    assert len(find_all(wildcard(), function)) >= 2
