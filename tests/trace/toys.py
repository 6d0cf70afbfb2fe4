"""A small model, passes of a few lines, and a pipeline that records their stages."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import clew.ops  # noqa: F401  fills the registry
from clew.build.tracing import trace_of
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.trace.kernels import InstructionRecord, KernelRecord
from clew.trace.lineage import building
from clew.trace.span import EMPTY, Source, Span
from clew.trace.stages import Remark, StageLog, StageRecord
from clew.trace.trace import Trace

Change = Callable[[Module], Module]


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "f32")


def layer(name: str, op: str, *args: Expr, op_type: str = "", **attrs: Any) -> Call:
    """Returns a call as a frontend builds it: the one node of a layer, marked as its result."""
    with building(Span([Source(name, op_type or op.title(), "toy", output=0)])):
        return get_op(op)(*args, **attrs)


def source_input(name: str, *shape: int) -> Var:
    return Var(name, f32(*shape), span=Span([Source(name, "", "toy", "input")]))


def parameter(name: str, data: Any) -> Constant:
    span = Span([Source(name, "", "toy", "parameter")])
    return Constant(np.asarray(data, dtype=np.float32), name=name, span=span)


def module_of(params: Sequence[Var], *results: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    return Module({"main": Function(params, Tuple(results, span=EMPTY), {"outputs": names})})


def run(module: Module, **passes: Change) -> list[StageRecord]:
    """Runs passes as a pass manager does."""

    def node_ids(m: Module) -> frozenset[int]:
        nodes = post_order([f for _, f in m], into_functions=True)
        return frozenset(n.id for n in nodes)

    log = StageLog(node_ids)
    log.add("import", module)
    for name, change in passes.items():
        remarks: list[Remark] = []
        with log.watching():
            module = change(module)
        calls = [n for n in post_order(module.main) if isinstance(n, Call)]
        if name == "Fuse":
            remarks = [Remark(calls[-1].id, name, "one kernel: nothing else follows")]
        log.add(name, module, remarks)
    return log.records


class Decompose(Rewriter):
    """`nn.swish(x)` -> `x * sigmoid(x)`."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.op_name != "nn.swish":
            return new
        return get_op("multiply")(new.args[0], get_op("sigmoid")(new.args[0]))


class Fold(Rewriter):
    """Calls of constants -> constants."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not all(isinstance(a, Constant) for a in new.args):
            return new
        with self.covers(old, *old.args):
            return Constant(new.op.run_reference([a.data for a in new.args], new.attrs))  # type: ignore[union-attr, attr-defined]


class Drop(Rewriter):
    """`identity(x)` -> `x`."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        return new.args[0] if old.op_name == "identity" else new


class Unify(Rewriter):
    """Equal calls -> one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, Expr] = {}

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        key = (new.op_name, tuple(a.id for a in new.args), new.attrs)
        return self.found.setdefault(key, new)


class ZeroOut(Rewriter):
    """`x * 0` -> `0`."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.op_name == "multiply" and isinstance(new.args[1], Constant):
            zero = new.args[1]
            if zero.is_splat and zero.splat_value == 0:
                return Constant.splat(0.0, new.tensor)
        return new


class CombineExps(Rewriter):
    """`exp(a), exp(b)` -> `split(exp(concatenate(a, b)))`: two nodes from two nodes."""

    def enter(self, function: Function) -> None:
        exps = [n for n in post_order(function) if isinstance(n, Call) and n.op_name == "exp"]
        if len(exps) != 2:
            return
        rows = tuple(int(e.args[0].tensor.concrete[0]) for e in exps)
        with building_for(*exps):
            whole = get_op("exp")(get_op("concatenate")(*(e.args[0] for e in exps), axis=0))
            parts = get_op("split")(whole, sizes=rows, axis=0)
            for n, old in enumerate(exps):
                self.memo[old.id] = TupleGetItem(parts, n)
                replaces(old, self.memo[old.id])


class Block(Rewriter):
    """`nn.relu` of NCHW -> of NCHW4c between transforms; the inner one is the *same* as the old."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.op_name != "nn.relu" or old.tensor.rank != 4:
            return new
        change = get_op("layout_transform")
        shape = old.tensor.concrete
        blocked = get_op("nn.relu")(change(new.args[0], src_layout="NCHW", dst_layout="NCHW4c"))
        replaces(old, blocked)
        return change(blocked, src_layout="NCHW4c", dst_layout="NCHW", shape=shape)


class Lie(Rewriter):
    """Claims that `exp(x)` is `exp(x) + 1`."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.op_name != "exp":
            return new
        return get_op("add")(new, Constant.splat(1.0, TensorType((), "f32")))


class Fuse(Rewriter):
    """The whole of `main` -> one primitive function."""

    def leave(self, function: Function, new: Function) -> Function:
        with building_for(function.body.fields[0]):  # type: ignore[attr-defined]
            params = [Var(p.name, p.type) for p in new.params]
        inner = Rewriter()
        inner.memo.update(zip((p.id for p in new.params), params, strict=True))
        body = new.body
        assert isinstance(body, Tuple)
        for node in post_order(body.fields[0]):
            inner._visit(node)
        with building_for(body.fields[0]):
            kernel = Function(
                params, inner.memo[body.fields[0].id], {"primitive": True, "name": "k"}
            )
            call = Call(kernel, new.params)
        replaces(body.fields[0], call)
        with building_for(function, function.body):
            return Function(new.params, Tuple([call]), new.attrs)


def applied(*rewriters: type[Rewriter]) -> dict[str, Change]:
    """Returns passes by the rewriters' names."""
    return {r.__name__: (lambda m, r=r: r().rewrite_module(m)) for r in rewriters}  # type: ignore[misc]


def traced(module: Module, *rewriters: type[Rewriter]) -> Trace:
    return trace_of(run(module, **applied(*rewriters)))


def swish_model() -> Module:
    x = source_input("x", 2, 4)
    scale = layer("fold_me", "exp", parameter("w", [0.0, 1.0, 2.0, 3.0]))
    scaled = layer("scale", "multiply", x, scale)
    passed = layer("noop", "identity", scaled)
    return module_of([x], layer("act", "nn.swish", passed, op_type="Swish"))


def swish_trace() -> Trace:
    """Returns a trace down to instructions: `multiply`, `sigmoid`, `multiply` in one kernel."""
    records = run(swish_model(), **applied(Decompose, Fold, Drop, Fuse))
    main = records[-1].module.main
    call = main.body.fields[0]
    ops = tuple(n for n in post_order(call.op) if isinstance(n, Call))
    assert [o.op_name for o in ops] == ["multiply", "sigmoid", "multiply"]
    kernel = KernelRecord(
        name="k",
        call=call.id,
        ops=tuple(o.id for o in ops),
        loops=(
            "for i in 0..8:",
            "  scaled = x[i] * w[i % 4]",
            "  s = sigmoid(scaled)",
            "  y[i] = scaled * s",
        ),
        loop_stages={2: "multiply", 3: "sigmoid", 4: "multiply_1"},
        stage_ops={"multiply": 0, "sigmoid": 1, "multiply_1": 2},
        llvm=("define void @k() {", "  %1 = fmul", "  %2 = call", "  %3 = fmul", "}"),
        llvm_lines={2: 2, 3: 3, 4: 4},
        asm=(
            InstructionRecord(0, "xor eax, eax", 1),
            InstructionRecord(4, "vmulps", 2),
            InstructionRecord(8, "vexpps", 3),
            InstructionRecord(12, "vdivps", 3),
            InstructionRecord(16, "vmulps", 4),
            InstructionRecord(20, "ret"),
        ),
    )
    return trace_of(records, lambda: [kernel])
