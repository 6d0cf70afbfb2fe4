# # clew from scratch
#
# A compiler is a chain of translations. clew also keeps a record of each translation, so the chain
# can be followed from a layer to an instruction and back. This page builds the whole chain for one
# small network from the parts below `clew.compile`, in the order in which a tensor passes them. It
# is for compiler engineers, and takes about half an hour to read.
#
# The page is a program, [`from_scratch.py`](from_scratch.py), which you can run and change.
# `python tools/weave.py` writes the page from the program's comments, code and output.
#
# ```
# layers ─▶ graph ─▶ passes ─▶ tensor expr. ─▶ loops ─▶ schedule ─▶ LLVM IR ─▶ machine code ─▶ run
#    ◀──────────────────────────────────────── trace ─────────────────────────────────────────
# ```
#
# The network has four layers: `project`, a matrix product; `normalize`, a multiplication by a
# factor per column; `shift`, an addition; and `activate`, a squared ReLU.
#
# ## 1. An operator
#
# A compiler needs many facts about an operator: its result type, its FLOPs, its loops, whether it
# can be fused. Separate declarations of these facts would sooner or later contradict each other.
# clew derives them from one definition, a *tensor expression* (te): a formula for each element,
# without an order of computation. Other facts, such as a NumPy reference and test samples, are
# declared [next to it](adding-an-op.md). Operators are registered by name
# ([`ops/registry.py`](../src/clew/ops/registry.py)).

from clew import te
from clew.ops.registry import get_op, register_op


@register_op("scratch.relu2")
def relu2(x: te.Tensor) -> te.Tensor:
    """`max(x, 0)²`. Source: So et al., Primer, 2021."""

    def element(*i: te.Scalar) -> te.Scalar:
        positive = te.maximum(x[i], 0.0)
        return positive * positive

    return te.compute(x.shape, element, "relu2")


matmul, multiply, add = map(get_op, ("nn.matmul", "multiply", "add"))

# ## 2. The graph
#
# The graph IR holds what the model says: operators, and which values depend on which. Nodes are
# immutable, so passes share everything that they do not change. A node's type is inferred when the
# node is built, so a graph with a type error cannot exist
# ([`ir/expr.py`](../src/clew/ir/expr.py)).
#
# Each node has a *span*: the layers, parameters or inputs of the user's model that it serves
# ([`trace/span.py`](../src/clew/trace/span.py)). Only frontends write spans; this program takes the
# place of one. `output=0` marks the node that computes the layer's first result.

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.trace.span import Source, Span


def parameter(name: str, shape: tuple[int, ...]) -> Constant:
    data = rng.standard_normal(shape, np.float32)
    return Constant(data, name=name, span=Span([Source(name, kind="parameter")]))


def layer(name: str, kind: str, op: Op, *args: Expr) -> Call:
    return Call(op, args, span=Span([Source(name, kind, output=0)]))


rng = np.random.default_rng(0)
x = Var("x", TensorType((8, 16), "f32"), span=Span([Source("x", kind="input")]))
weight, scale, shift = parameter("w", (16, 64)), parameter("s", (64,)), parameter("b", (64,))
y = layer("project", "MatMul", matmul, x, weight)
y = layer("normalize", "Mul", multiply, y, scale)
y = layer("shift", "Add", add, y, shift)
y = layer("activate", "Relu2", relu2, y)
module = Module({"main": Function([x], Tuple([y]), {"outputs": ["y"]})})
print(module)

# Spans follow `//`. Tests and bug reports use this text, because it [can be
# parsed](text-format.md).
#
# ## 3. Passes
#
# Optimizations that need whole operators belong to the graph, where a matrix product is one node
# and not three loops. A pass maps a module to a module ([adding a pass](adding-a-pass.md)). This
# one multiplies the columns of the weight by the scale at compile time; clew's own
# [`FoldScaleAxis`](../src/clew/passes/convolution/fold_scale_axis.py) does so for more kinds of
# layers.
#
# `rewrite_call` receives a call before and after its arguments were rewritten, `old` and `new`.
# Nothing in it mentions the trace: the `Rewriter` ([`ir/rewrite.py`](../src/clew/ir/rewrite.py))
# states which node it is rewriting, and every node built meanwhile takes this node's span and has
# it as its origin. `covers` extends the origin to all nodes of a match. A pass therefore cannot
# forget to record what it did.

from dataclasses import dataclass
from typing import TypeGuard

from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext


@dataclass(frozen=True)
class FoldScale(Pass):
    """`multiply(matmul(x, w), scale)` becomes `matmul(x, w * scale)` for constants."""

    def run(self, module: Module, ctx: PassContext) -> Module:
        return ScaleFolder().rewrite_module(module)


class ScaleFolder(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        match new:
            case Call(
                op=Op(name="multiply"),
                args=(Call(op=Op(name="nn.matmul"), args=(x, Constant() as w)) as product, scale),
            ) if is_scale(scale, w):
                with self.covers(old, product, w, scale):
                    scaled = Constant(w.data * scale.data, name=w.name)
                    return product.with_args((x, scaled))
        return new


def is_scale(scale: Expr, weight: Constant) -> TypeGuard[Constant]:
    """Whether a factor is a constant for each column of a weight."""
    return (
        isinstance(scale, Constant)
        and (scale.tensor.rank, weight.tensor.rank) == (1, 2)
        and scale.tensor.dtype == weight.tensor.dtype
    )


# The `PassManager` ([`passes/manager.py`](../src/clew/passes/manager.py)) runs passes and verifies
# the module after each. It keeps every *stage*: the module, and the *lineage* that was recorded.
# The second pass is clew's own `FuseOps`. It groups operators into *primitive functions*, each of
# which becomes one kernel. `add` and `relu2` then work on values in registers and need no memory
# traffic of their own.

from clew.build.tracing import trace_of
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.manager import PassManager
from clew.trace.refs import NodeRef

manager = PassManager([FoldScale(), FuseOps()])
final = manager.run(module)
print(manager.stages[1].module)

# Queries turn a lineage into *links* between the nodes of two stages
# ([`trace/links.py`](../src/clew/trace/links.py)). *Same* means that the new node computes the old
# node's value, a claim that can be tested; *derived* means that it was built for the old node. The
# new product computes the value of the old `multiply`, and three more nodes led to it:

trace = trace_of(manager.stages)
for node in trace.nodes(1).values():
    if isinstance(node, Call):
        print(trace.text(NodeRef(1, node.id)))
        for link in trace.links(1).backward(node.id):
            print(f"    {link.kind.value:8}{trace.text(NodeRef(0, link.old))}")

# After `FuseOps`, the main function calls one primitive function:

(use,) = (n for n in trace.nodes(2).values() if isinstance(n, Call) and isinstance(n.op, Function))
function = use.op
assert isinstance(function, Function)
print("\n".join(line.partition("  //")[0] for line in trace.lines(2)))

# ## 4. Tensor expressions
#
# Loop optimizations are the same for all operators, so the kernel half of the compiler knows no
# operators. Each operator of the function gives its tensor expression over those of its operands.
# The results are *te stages*, named after their operators; `stage_ops` keeps the operator of each.
# `KernelSource` ([`backends/cpu/lowering.py`](../src/clew/backends/cpu/lowering.py)) connects the
# graph half with the kernel half: for each kernel, it does what sections 4 to 6 do.

from clew.ir.visit import calls

operators = list(calls(function))
values: dict[int, te.Tensor] = {}
stage_ops: dict[str, int] = {}
for number, param in enumerate(function.params):
    values[param.id] = te.placeholder(param.tensor.shape, param.tensor.dtype, f"in{number}")
for position, call in enumerate(operators):
    assert isinstance(call.op, Op)
    assert call.op.compute is not None
    made = call.op.compute(*(values[a.id] for a in call.args), **call.attrs)
    assert isinstance(made, te.Tensor)
    made.name = call.op.name.rpartition(".")[2]
    values[call.id], stage_ops[made.name] = made, position
    print(f"{made.name}[{', '.join(axis.name for axis in made.axes)}] = {made.body}")

# ## 5. Loops
#
# Machines execute statements in an order, which tensor expressions leave open. `lower` chooses the
# simplest: each stage has its own loops, and a buffer for its results
# ([`loop/lower.py`](../src/clew/loop/lower.py)). This nest is slow, but its meaning is obvious; it
# is what every faster form is compared with.

from clew.loop.lower import lower
from clew.loop.schedule import Schedule

inputs = [values[param.id] for param in function.params]
nest = lower(function.attrs.name, inputs, [values[function.body.id]])
schedule = Schedule(nest)
print(schedule)

# A *schedule* makes it fast: a list of primitives, each of which changes the order of computation
# and raises an error where that would be illegal
# ([`loop/schedule.py`](../src/clew/loop/schedule.py)). The definition of a kernel thus stays apart
# from its optimization, and the list can be printed, edited, replayed and searched.
#
# The number of lanes comes from the target ([`machine/target.py`](../src/clew/machine/target.py)).
# It is a fixed one, so that this page is the same on every machine with AVX-512. On others, the
# program compiles for the machine itself.

from clew.machine.target import host, target_of

target = target_of("cpu-avx512" if host().vector_bits == 512 else "cpu")
lanes = target.vector_lanes("f32")

schedule.inline("add")  # computed where relu2 reads it
panel, column = schedule.split("relu2.i1", 2 * lanes)  # columns: panels of two vectors
vector, lane = schedule.split(column, lanes)
tile, row = schedule.split("relu2.i0", 4)  # rows: tiles of four
schedule.reorder(panel, tile, row, vector, lane)
schedule.compute_at("matmul", tile, "register")  # 4 × 2 vectors of sums stay in registers
schedule.reorder("matmul.k", "matmul.m", "matmul.n")  # an outer product per step
sums, sum_lane = schedule.split("matmul.n", lanes)
for loop in ("matmul.m", sums, row, vector):
    schedule.unroll(loop)
for loop in (sum_lane, lane):
    schedule.vectorize(loop)
schedule.parallel(panel)  # panels are independent: threads may share them

# In clew, rules apply the primitives ([`schedules/rules/`](../src/clew/schedules/rules), [adding a
# schedule rule](adding-a-schedule.md)); the numbers come from the target or from
# [measurement](tune.md). Instructions will refer to the numbered lines of the result:

from clew.loop.printer import print_nest

scheduled = schedule.finished()
printed = print_nest(scheduled)
for number, text in enumerate(printed.lines, 1):
    print(f"{number:2} {text}")

# An interpreter runs any nest, element by element; clew's tests check every schedule with it. It
# asserts that every access is inside its buffer, that every element is written before it is read,
# and that no thread reads what another one writes
# ([`loop/interpret.py`](../src/clew/loop/interpret.py)).

from clew.loop.interpret import interpret

inputs_of_run = [rng.standard_normal((8, 16), np.float32)]
inputs_of_run += [arg.data for arg in use.args if isinstance(arg, Constant)]
expected = np.maximum(inputs_of_run[0] @ weight.data * scale.data + shift.data, 0) ** 2
(value,) = interpret(scheduled, inputs_of_run)
np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)

# ## 6. LLVM IR
#
# LLVM selects instructions and allocates registers, so clew needs no code generator for each
# architecture. Vectorization is not left to LLVM: vector loops become vector operations and
# register tiles become SSA values here ([`codegen/kernel.py`](../src/clew/codegen/kernel.py)), so
# the schedule decides what the inner loop looks like. A debug location (`!dbg`) names the line of
# the nest that each line of LLVM IR computes. The last lines of the product:

import re

from clew.codegen.kernel import emit_kernel

emitted = emit_kernel(scheduled, printed, "kernel", target)
llvm = emitted.llvm.splitlines()
locations = dict(re.findall(r"^!(\d+) = !DILocation\(line: (\d+),", emitted.llvm, re.MULTILINE))
llvm_lines = {
    number: int(locations[found[1]])
    for number, text in enumerate(llvm, 1)
    if (found := re.search(r"!dbg !(\d+)", text)) and found[1] in locations
}
product_line = next(n for n, text in enumerate(printed.lines, 1) if "+=" in text)
for number in [n for n, line in llvm_lines.items() if line == product_line][-6:]:
    print(llvm[number - 1].strip())

# ## 7. Machine code
#
# llvmlite compiles the text to an object, in a worker process, since it compiles only one module at
# a time per process ([`codegen/worker.py`](../src/clew/codegen/worker.py)). The listing is
# disassembled from the object, so it shows what will run. The line of the nest, after `;`, comes
# from the object's line table. This is the end of the loop over `k`, and the first vector of the
# result:

from clew.codegen.disassemble import disassemble
from clew.codegen.objects import compile_modules

(data,) = compile_modules([emitted.llvm], target)
instructions = disassemble(data).instructions
last = max(n for n, i in enumerate(instructions) if i.line == product_line)
excerpt = range(last - 4, last + 9)
for n in excerpt:
    print(f"{instructions[n].address:4x}  {instructions[n].text:50} ; {instructions[n].line}")

# ## 8. The run
#
# The object is linked into this process
# ([`runtime/library.py`](../src/clew/runtime/library.py)). The
# arguments of a kernel are a table of addresses, scratch memory, and the part of its *grid* to
# compute. The grid is the parallel loop: the kernel knows nothing of threads, and its caller
# divides the work. In a compiled model, the caller is a generated
# [driver](../src/clew/codegen/driver/driver.py), which runs many kernels on a pool of threads
# without returning to Python, and a [plan](../src/clew/runtime/plan.py) puts intermediate values
# into one block of memory.

import ctypes

from clew.codegen.artifact import ObjectCode
from clew.runtime.library import Library

(entry,) = emitted.entries
library = Library([ObjectCode("from-scratch", data, (entry.symbol,))])
pointer, size = ctypes.c_void_p, ctypes.c_int64
kernel = ctypes.CFUNCTYPE(None, pointer, pointer, size, size, size, size)(
    library.address(entry.symbol)
)
result = np.empty((8, 64), np.float32)
table = (pointer * 4)(*(array.ctypes.data for array in (*inputs_of_run, result)))
for piece in range(entry.n_pieces):
    kernel(table, None, piece, piece + 1, 0, 1)
np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
print(f"{entry.n_pieces} pieces, equal to NumPy: {np.allclose(result, expected, 1e-4, 1e-5)}")

# ## 9. Back to the layers
#
# Each translation left a map: from instructions to lines of the nest, from lines to te stages, from
# te stages to operators, from operators to nodes of earlier stages, and from nodes to layers. The
# trace joins them ([`trace/queries.py`](../src/clew/trace/queries.py)). No compiler stage reads the
# trace, so recording it cannot change the code.

from clew.build.kernel_trace import single_stages
from clew.trace.kernels import InstructionRecord, KernelRecord
from clew.trace.refs import AsmRef, LayerRef

record = KernelRecord(
    name=function.attrs.name,
    call=use.id,
    ops=tuple(call.id for call in operators),
    loops=tuple(printed.lines),
    loop_stages=single_stages(printed),
    stage_ops=stage_ops,
    llvm=tuple(llvm),
    llvm_lines=llvm_lines,
    asm=tuple(InstructionRecord(i.address, i.text, i.line) for i in instructions),
)
trace = trace_of(manager.stages, [record])

# The instructions of section 7 again, each with its layers:

for n in excerpt:
    reach = trace.backward(AsmRef(use.id, n + 1))
    print(f"{record.asm[n].text:50} {', '.join(trace.in_order(ref.layer for ref in reach.layers))}")

# And the last multiply-add, from the instruction up to the model, with one line for each node:

reach = trace.backward(AsmRef(use.id, last + 1))
line = reach.loops[0].line
print(f"{'instruction':12}{record.asm[last].text}")
print(f"{'loops':12}line {line}, te stage {record.loop_stages[line]}")
for stage, nodes in sorted(reach.nodes.items(), reverse=True):
    for ref in nodes:
        print(f"{manager.stages[stage].name:12}{trace.text(ref).partition('  //')[0]}")

# In the other direction, the trace finds the instructions of a layer. Those of `normalize` are the
# product's, which now computes it. The heads of loops count for all layers inside.

for name in trace.layers:
    served = trace.forward(LayerRef(name)).asm
    print(f"{name:10}{len(served):3} of {len(record.asm)} instructions")

# A record is only useful if it is complete and true. `check` looks for nodes and kernels without an
# origin. `verify` evaluates both ends of all *same* links on real inputs, and so finds a pass that
# changes a value.

assert trace.check() == []
report = trace.verify(inputs_of_run[0])
print(f"{report.checked} links, all true: {report.ok}")

# `clew.compile` builds the same chain, with [more passes](../src/clew/pipelines/__init__.py), more
# kernels, and sizes that only a run knows. `compiled.trace` answers the same questions. The
# [architecture](architecture.md) describes the folders, the [source map](source-map.md) the files,
# and the [decisions](decisions/README.md) where clew differs from other compilers.
