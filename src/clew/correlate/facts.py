"""Facts about operators and kernels as JSON values, from the operators' declarations.

There is no table of operators here: attributes and their names come from the declaration, sizes
from types and layouts, products and FLOPs from the tensor expressions. A key that does not apply is
absent. `docs/correlate.md` lists the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from clew.build.kernel import Kernel
from clew.build.result import Build
from clew.codegen.artifact import EntryPoint
from clew.cost.work import ProductSize, flops_of, product_flops_of, products_of
from clew.ir.dims import Dim
from clew.ir.expr import ArgRef, Attrs, Call, Constant, Expr
from clew.ir.types import TensorType, TupleType, Type
from clew.ops.movement.layouts import logical_sizes, parse_layout
from clew.ops.registry import Op
from clew.runtime.grid import is_shared, phases
from clew.support.caches import bounded_cache
from clew.support.errors import GraphTypeError
from clew.te.tensor import Tensor

Facts = dict[str, Any]

# Attributes with the same meaning in every declaration.
_WINDOW: Final = ("kernel", "strides", "padding", "dilation", "groups")
_CHANNELS_OF_FILTERS: Final = frozenset("OI")


def describe_type(type_: Type) -> Facts:
    """Returns a value's type: `shape` (symbolic sizes as text), `dtype`, `layout` if it has one,
    `bytes` if known; for a tuple, `fields`.
    """
    if isinstance(type_, TensorType):
        facts: Facts = {"shape": [plain(d) for d in type_.shape], "dtype": type_.dtype}
        if type_.layout:
            facts["layout"] = type_.layout
        if type_.is_static:
            facts["bytes"] = type_.size_bytes
        return facts
    if isinstance(type_, TupleType):
        return {"fields": [describe_type(f) for f in type_.fields]}
    return {"type": str(type_)}


def plain(value: Any) -> Any:
    """Returns an attribute's value for JSON: tuples as lists, symbolic sizes as text, values held
    by an argument as `{"argument": index}`, other values as text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if abs(value) < float("inf") else str(value)
        case ArgRef():
            return {"argument": value.index}
        case tuple() | list():
            return [plain(v) for v in value]
    return str(value)


def describe_operator(call: Call, build: Build | None = None) -> Facts:
    """Returns the facts of one operator's call: `op`, `attrs` as declared, `inputs`, `outputs`,
    `kind`, `flops`, and sizes by their usual names (`kernel`, `channels_in`, `m`, `n`, `k` ...).

    Sizes are those of `build`, which the call is part of; without it, symbolic sizes are text.
    """
    op, attrs = call.op, call.attrs
    types, result = [a.type for a in call.args], call.type
    if build is not None:
        types, result = list(map(build.type_at, types)), build.type_at(result)
        attrs = build.attrs_at(attrs)
    outputs = result.fields if isinstance(result, TupleType) else (result,)
    facts: Facts = {"op": call.title, "layers": list(call.layers)}
    if not isinstance(op, Op):
        inputs = [describe_type(t) for t in types]
        return {**facts, "inputs": inputs, "outputs": [describe_type(t) for t in outputs]}
    derived = _derived(op, tuple(types), attrs, result)
    facts |= {k: v for k, v in derived.items() if k not in ("inputs", "outputs")}
    facts["inputs"] = [
        {**i, **_value(a)} for i, a in zip(derived["inputs"], call.args, strict=True)
    ]
    facts["outputs"] = derived["outputs"]
    return facts


def _value(argument: Expr) -> Facts:
    """Returns the value of an argument that is a constant of one number."""
    number = single_number(argument)
    return {} if number is None else {"value": plain(number)}


def single_number(argument: Expr) -> float | int | bool | None:
    """Returns the number held by a constant with all elements equal; else None."""
    if not isinstance(argument, Constant) or argument.is_lazy or not argument.is_splat:
        return None
    number: float | int | bool = argument.splat_value
    return number


@bounded_cache(1 << 22)
def _derived(op: Op, types: tuple[Type, ...], attrs: Attrs, result: Type) -> Facts:
    """Returns the facts that do not depend on the place of a call in the graph. Callers must not
    change the result.
    """
    names = [*op.signature.inputs[: len(types)]]
    names += [f"{op.signature.variadic}{n}" for n in range(len(types) - len(names))]
    inputs = _inputs(names, types, attrs)
    outputs = _outputs(result, attrs, inputs)
    facts: Facts = {"attrs": {k: plain(v) for k, v in attrs.items()}}
    if outputs and isinstance(outputs[0].type, TensorType):
        facts["dtype"] = outputs[0].type.dtype
        if outputs[0].layout:
            facts["layout"] = outputs[0].layout
    facts |= _window(inputs, attrs)
    facts |= _channels_of(inputs, outputs, attrs)
    facts |= _work(op, types, attrs)
    facts["inputs"] = [{"name": i.name, **i.described()} for i in inputs]
    facts["outputs"] = [o.described() for o in outputs]
    return facts


# --- operands: the layout of the type, else of the attribute for it ---


@dataclass(frozen=True)
class _Operand:
    """An input or result of an operator, with its layout, if known."""

    name: str
    type: Type
    layout: str

    def described(self) -> Facts:
        return {**describe_type(self.type), **({"layout": self.layout} if self.layout else {})}

    @property
    def sizes(self) -> dict[str, Dim] | None:
        """The sizes of its logical axes; None without a layout."""
        return _logical(self.type, self.layout)

    @property
    def rank(self) -> int:
        return self.type.rank if isinstance(self.type, TensorType) else 0


def _operand(name: str, type_: Type, *said: Any) -> _Operand:
    """Returns an operand in the layout of its type, else in the first given layout that fits it."""
    own = type_.layout if isinstance(type_, TensorType) else ""
    fitting = (str(la) for la in said if la and _logical(type_, str(la)) is not None)
    return _Operand(name, type_, own or next(fitting, ""))


def _inputs(names: Sequence[str], types: Sequence[Type], attrs: Attrs) -> list[_Operand]:
    made = []
    for number, (name, type_) in enumerate(zip(names, types, strict=True)):
        first = (attrs.get("layout"), attrs.get("src_layout")) if number == 0 else ()
        made.append(_operand(name, type_, attrs.get(f"{name}_layout"), *first))
    return made


def _outputs(result: Type, attrs: Attrs, inputs: Sequence[_Operand]) -> list[_Operand]:
    fields = result.fields if isinstance(result, TupleType) else (result,)
    said = [attrs.get(name) for name in ("out_layout", "dst_layout", "layout", "data_layout")]
    return [_operand("", t, *said) for t in fields]


def _logical(type_: Type, layout: str) -> dict[str, Dim] | None:
    if not isinstance(type_, TensorType) or not layout:
        return None
    try:
        return logical_sizes(parse_layout(layout), type_.shape)
    except GraphTypeError:
        return None  # a layout with other axes


# --- windows and channels ---


def _window(inputs: Sequence[_Operand], attrs: Attrs) -> Facts:
    """Returns the attributes of windows, and the size of filters, as their layout gives it."""
    if "strides" not in attrs or "padding" not in attrs:
        return {}
    facts = {name: plain(attrs[name]) for name in _WINDOW if name in attrs}
    weight = next((i for i in inputs if i.name == "weight"), None)
    if "kernel" in facts or weight is None or not isinstance(weight.type, TensorType):
        return facts
    sizes = weight.sizes
    if sizes is not None and set(sizes) >= _CHANNELS_OF_FILTERS:
        facts["kernel"] = [
            plain(n) for axis, n in sizes.items() if axis not in _CHANNELS_OF_FILTERS
        ]
    elif sizes is None and weight.rank == 2 + len(attrs["strides"]):
        facts["kernel"] = [plain(n) for n in weight.type.shape[2:]]
    return facts


def _channels_of(inputs: Sequence[_Operand], outputs: Sequence[_Operand], attrs: Attrs) -> Facts:
    """Returns channels in and out: the axis C of layouts, or the second axis of plain images."""
    spatial = len(attrs["strides"]) if "strides" in attrs and "padding" in attrs else 0
    facts = {}
    before = _channels(inputs[0], spatial) if inputs else None
    after = attrs.get("channels") or (_channels(outputs[0], spatial) if outputs else None)
    if before is not None:
        facts["channels_in"] = plain(before)
    if after is not None:
        facts["channels_out"] = plain(after)
    return facts


def _channels(operand: _Operand, spatial: int) -> Dim | None:
    sizes = operand.sizes
    if sizes is not None:
        return sizes.get("C")
    if spatial and operand.rank == 2 + spatial and isinstance(operand.type, TensorType):
        return operand.type.shape[1]
    return None


# --- work ---


def _work(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Facts:
    """Returns kind, FLOPs and the sizes of the product, from the operator's tensor expressions."""
    if op.host:
        return {"kind": "host"}
    tensors = [t for t in types if isinstance(t, TensorType)]
    if op.compute is None or len(tensors) != len(types):
        return {}
    if any(isinstance(v, ArgRef) for v in attrs.values()):
        return {}
    try:
        facts: Facts = {"kind": op.kind(tensors, attrs).name.lower()}
        results = op.computed(tensors, attrs)
    except (AssertionError, TypeError, GraphTypeError):
        return {}  # sizes known only during the run
    return {**facts, **_counts(results), **_product(results, attrs)}


def _counts(outputs: Sequence[Tensor]) -> Facts:
    facts: Facts = {"flops": plain(flops_of(outputs))}
    products = product_flops_of(outputs)
    if products:
        facts["product_flops"] = plain(products)
    return facts


def _product(outputs: Sequence[Tensor], attrs: Attrs) -> Facts:
    """Returns `batch`, `m`, `n`, `k` of the largest sum of products, as a matrix product.

    Groups of a convolution become a batch of products with fewer columns.
    """
    found = products_of(outputs)
    if not found:
        return {}
    largest = max(found, key=_size)
    batch, columns = largest.batch, largest.n
    groups = attrs.get("groups", 1)
    if isinstance(groups, int) and groups > 1 and columns == 1:
        batch, columns = groups, batch // groups
    sizes = {"batch": batch, "m": largest.m, "n": columns, "k": largest.k}
    return {name: plain(size) for name, size in sizes.items()}


def _size(product: ProductSize) -> int:
    whole = product.batch * product.m * product.n * product.k
    return whole if isinstance(whole, int) else 0


# --- kernels ---


def describe_kernel(kernel: Kernel) -> Facts:
    """Returns the facts of one use of a kernel: target, operators in order, types, work, phases of
    its code, schedule rules, layers. Sizes are those of its build.
    """
    function, build, work = kernel.function, kernel.build, kernel.work
    result = build.type_at(function.body.type)
    results = result.fields if isinstance(result, TupleType) else (result,)
    types = [build.type_at(p.type) for p in function.params]
    code, target = kernel.code, kernel.target
    facts: Facts = {
        "name": kernel.name,
        "key": kernel.key,
        "target": {
            "name": target.name,
            "triple": target.triple,
            "cpu": target.cpu,
            "vector_bits": target.vector_bits,
            "l2_bytes": target.l2_bytes,
        },
        "threads": kernel.threads,
        "layers": list(kernel.layers),
        "ops": [describe_operator(call, build) for call in kernel.calls],
        "arguments": [describe_type(t) for t in types],
        "results": [describe_type(t) for t in results],
        "kind": max_kind(kernel),
        "flops": work.flops,
        **({"product_flops": work.product_flops} if work.product_flops else {}),
        "bytes": work.bytes,
    }
    facts["argument_bytes"] = sum(a["bytes"] for a in facts["arguments"])
    facts["result_bytes"] = sum(r["bytes"] for r in facts["results"])
    fusion = function.attrs.get("fusion")
    if fusion:
        facts["fusion"] = fusion
    facts |= {
        "rules": list(kernel.rules),
        "phases": _phases(code.entries, kernel.threads),
        "scratch_bytes": code.scratch,
        "workspace_bytes": sum(map(build.number, code.workspace_bytes)),
        "code_bytes": len(kernel.object_code),
    }
    return facts


def _phases(entries: Sequence[EntryPoint], threads: int) -> list[Facts]:
    """Returns the parallel phases: `grid` pieces of `lines` lines each, and whether threads share
    lines. `joins`: runs concurrently with the previous phase.
    """
    return [
        {
            "grid": entry.grid,
            "lines": entry.n_lines,
            "estimate_ns": entry.cost,
            "joins": entry.joins,
            "shared": is_shared(phase, threads),
        }
        for phase in phases(entries)
        for entry in phase
    ]


def max_kind(kernel: Kernel) -> str:
    """Returns the kernel's kind: the most demanding fusion kind among its operators."""
    kinds = [
        call.op.kind([a.tensor for a in call.args], call.attrs)
        for call in kernel.calls
        if isinstance(call.op, Op)
    ]
    return max(kinds).name.lower() if kinds else "opaque"
