"""Plants defects in clew, one at a time, and runs `clew.bisect` on whole networks to find them.

    python benchmarks/planted.py
    python benchmarks/planted.py --models light_resnet50,bert_base --plants scaled,tail

A row shows the result, whether it is the planted defect (kind, pass and layer), the number of
operators in the reduced model, whether it still fails, and the seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from rich.table import Table

import clew
import zoo
from clew.bisection import Verdict
from clew.codegen.math import polynomials
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.loop.ir import For, Stmt, single
from clew.loop.primitives import loops as loop_primitives
from clew.loop.primitives.common import PRIMITIVES, rewrite_loops
from clew.passes.base import PassContext
from clew.passes.simplify import fold_constant
from clew.runtime import division, memory
from harness.report import console

TINY = (
    "mobilenet_tiny,resnet_tiny,convnext_micro,vit_tiny,keyword_spotting,bert_tiny,"
    "bert_tiny_dynamic,gpt2_tiny,llama_tiny,encoder_small"
)


@dataclass
class Planted:
    """Options to compile with, and the expected result: layers, one of which must be named."""

    kind: str
    options: dict[str, Any]
    pass_name: str = ""
    layers: tuple[str, ...] = ()


# --- passes ---------------------------------------------------------------------------------------


def victims(module: Module, fits: Callable[[Call], bool]) -> list[Call]:
    """Returns calls of f32 operators that serve one layer and can be changed."""
    return [
        n
        for n in post_order(module.main.body)
        if isinstance(n, Call)
        and isinstance(n.type, TensorType)
        and n.type.dtype == "f32"
        and n.type.rank
        and not isinstance(n.op, Function)
        and fits(n)
    ]


class _Change(Rewriter):
    def __init__(self, victim: int, change: Callable[[Call], Expr]) -> None:
        super().__init__()
        self._victim, self._change = victim, change

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        return self._change(new) if old.id == self._victim else new


@contextmanager
def _pass(
    name: str,
    fits: Callable[[Call], bool],
    change: Callable[[Call], Expr],
    *,
    kind: str = "pass",
    silent: bool = False,
) -> Iterator[Planted]:
    planted = Planted(kind, {}, name)

    def run(module: Module, ctx: PassContext) -> Module:
        found = victims(module, fits)
        if not found:
            return module
        victim = found[len(found) // 2]
        planted.layers = tuple(victim.span.layers)
        if silent:
            return _rebuilt(module, victim, change)
        return _Change(victim.id, change).rewrite_module(module)

    run.__name__ = name
    planted.options["extend"] = [clew.graph_pass(before="AlterLayout")(run)]
    yield planted


def _rebuilt(module: Module, victim: Call, change: Callable[[Call], Expr]) -> Module:
    """Returns the changed module, without telling the trace."""
    made: dict[int, Expr] = {p.id: p for p in module.main.params}
    for node in post_order(module.main.body):
        if node.id in made or isinstance(node, Function):
            continue
        new = rebuild(node, [made.get(c.id, c) for c in node.children])
        made[node.id] = change(new) if node is victim else new  # type: ignore[arg-type]
    main = Function(module.main.params, made[module.main.body.id], module.main.attrs)
    return module.with_functions({"main": main})


def _scale(factor: float) -> Callable[[Call], Expr]:
    def change(new: Call) -> Expr:
        return clew.get_op("multiply")(new, Constant(np.float32(factor)))

    return change


def _anything(call: Call) -> bool:
    return call.op_name not in ("reshape", "transpose", "broadcast_to", "shape_of")


def _is_sum(call: Call) -> bool:
    return call.op_name == "add" and call.args[0].type == call.type


def _is_square(call: Call) -> bool:
    weight = call.args[1] if len(call.args) > 1 else None
    return (
        call.op_name in ("nn.conv2d", "nn.dense", "nn.matmul")
        and isinstance(weight, Constant)
        and isinstance(weight.type, TensorType)
    )


def _turned(new: Call) -> Expr:
    weight = new.args[1]
    assert isinstance(weight, Constant)
    turned = Constant(np.ascontiguousarray(weight.data[::-1]), name=weight.name)
    return new.with_args([new.args[0], turned, *new.args[2:]])


def _overflowing(new: Call) -> Expr:
    op = clew.get_op
    large = op("multiply")(new, Constant(np.float32(1e6)))
    narrow = op("cast")(op("cast")(large, dtype="f16"), dtype="f32")
    return op("multiply")(narrow, Constant(np.float32(1e-6)))


@contextmanager
def wrong_fold() -> Iterator[Planted]:
    """Reverses the rows of folded matrices."""
    right = fold_constant._constant

    def wrong(value: Any, type_: Any) -> Constant:
        array = np.asarray(value)
        return right(array[::-1] if array.ndim in (2, 4) else array, type_)

    with patch.object(fold_constant, "_constant", wrong):
        yield Planted("pass", {}, "FoldConstant")


# --- kernels --------------------------------------------------------------------------------------


@contextmanager
def tail() -> Iterator[Planted]:
    """Splitting a loop drops the iterations that do not fill a whole tile."""

    def split(nest: Any, simplifier: Any, *, loop: str, factor: int, tail: str = "peel") -> Any:
        def rewrite(at: For) -> Stmt:
            tiles = max(1, at.extent // factor)
            piece = loop_primitives._piece(at, 0, tiles, min(factor, at.extent), simplifier)
            return single([piece])

        return rewrite_loops(nest, loop, rewrite)

    with patch.dict(PRIMITIVES, {"split": split}):
        yield Planted("schedule", {})


@contextmanager
def polynomial() -> Iterator[Planted]:
    """Makes polynomials of exp, erf and tanh inaccurate."""
    names = ("EXP_F32", "ERF_SMALL_F32", "TANH_F32")
    wrong: dict[str, Any] = {n: tuple(c * 1.5 for c in getattr(polynomials, n)) for n in names}
    with patch.multiple(polynomials, **wrong):
        yield Planted("codegen", {})


@contextmanager
def overlap() -> Iterator[Planted]:
    """Lets buffers share memory while both are in use."""
    right = memory.plan_arena

    def plan(lifetimes: Any) -> Any:
        short = [type(x)(x.size_bytes, x.first_step, x.first_step) for x in lifetimes]
        return right(short)

    with (
        patch.object(memory, "plan_arena", plan),
        patch.object(memory, "check_plan", lambda plan: None),
        patch("clew.runtime.segment.check_plan", lambda plan: None),
    ):
        yield Planted("memory", {})


@contextmanager
def share() -> Iterator[Planted]:
    """With several threads, skips the last piece of a kernel's work."""
    right = division._evenly

    def short(count: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size, parts = right(count, most)
        return size, parts - (most > 1)

    with patch.object(division, "_evenly", short):
        yield Planted("threads", {"threads": 2})


@contextmanager
def tensor_form() -> Iterator[Planted]:
    """Makes the tensor expression of attention, which has a separate reference, wrong."""
    ops = [clew.get_op("nn.attention")]
    before = [op.compute for op in ops]

    def wrong(right: Any) -> Any:
        def compute(*args: Any, **attrs: Any) -> Any:
            made = right(*args, **attrs)
            return clew.te.compute(made.shape, lambda *i: made[i] * 1.125, "wrong")

        return compute

    try:
        for op, right in zip(ops, before, strict=True):
            op.compute = wrong(right)
        yield Planted("compute", {})
    finally:
        for op, right in zip(ops, before, strict=True):
            op.compute = right


PLANTS: dict[str, Callable[[], Any]] = {
    "scaled": lambda: _pass("scaled", _anything, _scale(1.5)),
    "silent": lambda: _pass("silent", _anything, _scale(1.5), silent=True),
    "dead": lambda: _pass("dead", _is_sum, lambda new: new.args[0]),
    "turned": lambda: _pass("turned", _is_square, _turned),
    "overflow": lambda: _pass("overflow", _anything, _overflowing, kind="precision"),
    "fold": wrong_fold,
    "tail": tail,
    "polynomial": polynomial,
    "overlap": overlap,
    "share": share,
    "compute": tensor_form,
}


def bisected(model: str, plant: str, seconds: float) -> tuple[Planted, Verdict, bool, float]:
    """Returns the planted defect, the verdict, whether the reduced model fails, and the seconds."""
    start = time.perf_counter()
    with PLANTS[plant]() as planted:
        verdict = clew.bisect(
            str(zoo.path(model)),
            zoo.inputs(model),
            reference="onnxruntime",
            seconds=seconds,
            **{"threads": 1, "cache": False, **planted.options},
        )
        fails = verdict.reduced is not None and verdict.reduced.fails()
    return planted, verdict, fails, time.perf_counter() - start


def named(planted: Planted, verdict: Verdict) -> bool:
    """Whether the verdict names the planted defect."""
    layers = not planted.layers or bool(set(planted.layers) & set(verdict.layers))
    return verdict.kind == planted.kind and layers and planted.pass_name in ("", verdict.pass_name)


def main(
    models: Annotated[str, typer.Option(help="Models of the zoo.")] = TINY,
    plants: Annotated[str, typer.Option(help="Defects.")] = ",".join(PLANTS),
    seconds: Annotated[float, typer.Option(help="Time for each reduction.")] = 20.0,
) -> None:
    """Prints a table of models and defects."""
    table = Table("model", "planted", "found", "at", "operators", "fails", "s", box=None)
    count = right = absent = 0
    for model in models.split(","):
        for plant in plants.split(","):
            planted, verdict, fails, took = bisected(model, plant, seconds)
            if verdict.kind == "none":  # the defect does not affect this model
                absent += 1
                continue
            count += 1
            left = verdict.reduced.operators if verdict.reduced else 0
            ok = named(planted, verdict) and fails and 0 < left <= 5
            right += ok
            at = verdict.pass_name or verdict.kernel
            found = verdict.kind if ok else f"[red]{verdict.kind}[/]"
            row = model, plant, found, at, str(left), "yes" if fails else "no", f"{took:.1f}"
            table.add_row(*row)
            console.print(f"{model} {plant}: {verdict.kind} {at} {took:.1f} s", style="dim")
    console.print(table)
    console.print(f"{right} of {count} named and reduced; {absent} without effect in the model")


if __name__ == "__main__":
    typer.run(main)
