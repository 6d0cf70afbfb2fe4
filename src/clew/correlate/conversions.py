"""Finds the conversions of a compiled model, and what became of each, along the trace's links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from clew.correlate.conversion_rows import Conversion, Conversions
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.trace.values import follow_values

if TYPE_CHECKING:
    from clew.serving.built_model import BuiltModel
    from clew.trace.kernels import KernelTrace
    from clew.trace.trace import Trace

QUANTIZED: Final = ("quantize", "dequantize", "requantize", "fake_quantize")
"""Operators between floats, or sums of products, and integers with a scale."""
_LAYOUT: Final = "layout_transform"
_CAST: Final = "cast"
_TABLE: Final = "apply_table"
_NARROW: Final = frozenset({"i4", "u4", "i8", "u8", "i16", "u16", "bf16", "f16"})
# Operators that may accompany a conversion without being work for a layer.
_WITH: Final = frozenset({"pad", "reshape", "transpose", "expand_dims"})
_ADJUSTING: Final = frozenset({"add", "subtract", "clip"})


def conversions_of(compiled: BuiltModel) -> Conversions:
    """Returns the conversions of a compiled model, found by its trace. A model from any source has
    them.

    Errors: I044 and I045 for models without a trace.
    """
    _ = compiled.build
    return Conversions(tuple(_Finder(compiled.trace).rows()))


class _Finder:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._users: dict[int, dict[int, list[Expr]]] = {}
        self._remarks: dict[int, dict[int, list[str]]] = {}
        nodes = trace.nodes(trace.last).values()
        # Calls of kernels by the operator that gives their result: links lead to the calls.
        self._calls = {_computing(n).id: n.id for n in nodes if isinstance(n, Call)}
        # The values that layers of the model convert.
        self._converted: dict[str, str] = {}
        for call in _conversions(trace.nodes(0).values()):
            for layer in call.span.layers[:1]:
                self._converted.setdefault(layer, self._named(call.args[0], 0))

    def rows(self) -> Iterator[Conversion]:
        """Yields the conversions of the model, then those that passes inserted."""
        trace = self._trace
        done: set[int] = set()
        for call in _conversions(trace.nodes(0).values()):
            ends, passes, moved = self._followed(call)
            row = self._of_model(call, ends, passes, moved, done)
            yield row
            done.update(n.id for n in ends if row.fate != "merged")
        for call in _conversions(trace.nodes(trace.last).values()):
            if call.id not in done and not isinstance(call.args[0], Constant):
                yield self._inserted(call)

    # --- of the model ---

    def _followed(self, call: Call) -> tuple[list[Expr], list[str], bool]:
        """Returns the nodes of the last stage that compute a conversion's value, or do its work
        elsewhere; the passes that changed it, and whether it was moved or merged.
        """
        trace, passes, moved = self._trace, list[str](), False
        stage, node = 0, call.id
        while True:
            held, gone = follow_values(trace, stage, [node])[node]
            if gone is None:
                nodes = trace.nodes(trace.last)
                ends = [_computing(nodes[n]) for n in held]
                first = next((n for n in ends if isinstance(n, Call)), None)
                if first is not None and first.op_name != call.op_name and not moved:
                    passes += self._renaming(stage, node, call.op_name)
                return ends, passes, moved
            before = follow_values(trace, stage, [node], gone - 1)[node][0] or (node,)
            links = trace.links(gone)
            made = [trace.nodes(gone)[k.new] for n in before for k in links.forward(n)]
            same = [n for n in _conversions(made) if n.op_name == call.op_name]
            other = [n for n in _conversions(made) if n.op_name in QUANTIZED]
            name = trace.stages[gone].name
            passes += [name] if name not in passes else []
            if not (same or other):
                return [], passes, moved
            stage, node, moved = gone, (same or other)[-1].id, True

    def _renaming(self, stage: int, node: int, name: str) -> list[str]:
        """Returns the passes after which another operator than before computes a value."""
        trace, found, now = self._trace, list[str](), [node]
        for following in range(stage + 1, trace.last + 1):
            if not trace.stages[following].changed:
                continue
            links, nodes = trace.links(following), trace.nodes(following)
            now = [k.new for n in now for k in links.forward(n) if k.kind.value != "derived"]
            names = [c.op_name for n in now if isinstance(c := _computing(nodes[n]), Call)]
            if names and name not in names:
                found.append(trace.stages[following].name)
                name = names[0]
        return found

    def _of_model(
        self, call: Call, ends: Sequence[Expr], passes: Sequence[str], moved: bool, done: set[int]
    ) -> Conversion:
        value = call.args[0]
        row = self._row(call, 0, next(iter(call.span.layers), ""))
        final = next((_behind_limits(n) for n in ends if isinstance(n, Call)), None)
        fate, became, kernel, beside = "cancelled", "", "", tuple[str, ...]()
        if ends and final is None:
            fate = "folded"
        elif isinstance(final, Call):
            fate, became, kernel, beside = self._place(final)
            takes_over = call.op_name == "quantize" and final.op_name in QUANTIZED
            if final.id in done or (moved and not takes_over):
                fate = "merged"
            elif not _is_conversion(final) and final.op_name != _TABLE:
                fate = "cancelled"
        return replace(
            row,
            constant=isinstance(value, Constant),
            passes=tuple(passes),
            fate=fate,
            became=became,
            kernel=kernel,
            beside=beside,
            why=self._why_changed(call),
            **_numbers(call),
        )

    def _why_changed(self, call: Call) -> tuple[str, ...]:
        """Returns the remarks of passes about a conversion of the model."""
        found = []
        for stage, record in enumerate(self._trace.stages):
            for remark in record.remarks:
                if stage and remark.node_id == call.id:
                    found.append(f"{remark.pass_name}: {remark.text}")
        return tuple(dict.fromkeys(found))

    # --- inserted ---

    def _inserted(self, call: Call) -> Conversion:
        stage, node = self._made_at(call)
        fate, became, kernel, beside = self._place(call)
        return replace(
            self._row(call, self._trace.last, ""),
            inserted_by=self._trace.stages[stage].name,
            fate=fate,
            became=became,
            kernel=kernel,
            beside=beside,
            why=self._why_made(stage, node),
        )

    def _made_at(self, call: Call) -> tuple[int, int]:
        """Returns the stage whose pass made a conversion, and its node there."""
        trace, now = self._trace, self._calls.get(call.id, call.id)
        for stage in range(trace.last, 0, -1):
            if not trace.stages[stage].changed:
                continue
            before = trace.nodes(stage - 1)
            olds = [
                k.old
                for k in trace.links(stage).backward(now)
                if k.kind.value != "derived"
                and isinstance(found := _computing(before[k.old]), Call)
                and found.op_name == call.op_name
            ]
            if not olds:
                return stage, now
            now = olds[0]
        return 0, now

    def _why_made(self, stage: int, node: int) -> tuple[str, ...]:
        """Returns the remarks of the pass about the nodes that became a conversion or read it."""
        if stage not in self._remarks:
            links = self._trace.links(stage)
            said: dict[int, list[str]] = {}
            for remark in self._trace.stages[stage].remarks:
                for link in links.forward(remark.node_id):
                    text = f"{remark.pass_name}: {remark.text}"
                    said.setdefault(link.new, []).append(text)
            self._remarks[stage] = said
        said = self._remarks[stage]
        read_by = [n.id for n in self._users_at(stage).get(node, ())]
        return tuple(dict.fromkeys(t for n in (node, *read_by) for t in said.get(n, ())))

    # --- both ---

    def _row(self, call: Call, stage: int, layer: str) -> Conversion:
        value = call.args[0]
        before, after = _stored(value.tensor, call.tensor)
        layers = call.span.layers
        working = tuple(la for la in layers if la not in self._converted)[:1] or layers[:1]
        readers = working if stage else self._readers(call, stage)
        named = self._named(value, stage)
        return Conversion(call.op_name, layer, before, after, named, readers)

    def _readers(self, call: Call, stage: int) -> tuple[str, ...]:
        """Returns the layers that read a conversion, also through others."""
        found: dict[str, None] = {}
        pending, seen = [call.id], set[int]()
        while pending:
            node = pending.pop()
            for user in self._users_at(stage).get(node, ()):
                if user.id in seen:
                    continue
                seen.add(user.id)
                if isinstance(user, Call) and _is_conversion(user):
                    pending.append(user.id)
                elif isinstance(user, Call) and user.span.layers:
                    found[user.span.layers[0]] = None
        return self._trace.in_order(found)

    def _named(self, value: Expr, stage: int) -> str:
        """Returns the name of a value: of an input, a parameter, or the layer that computes it."""
        if isinstance(value, Var) and not stage:
            return value.name
        sources = value.span.sources
        parameters = [s.layer for s in sources if s.kind == "parameter"]
        if isinstance(value, Constant):
            return value.name or next(iter(parameters), "") or next(iter(value.span.layers), "")
        if isinstance(value, Call) and _is_conversion(value) and not stage:
            return self._named(value.args[0], stage)
        marked = [s.layer for s in sources if s.output is not None]
        names = marked or list(value.span.layers)
        own = [n for n in names if n not in self._converted] or names
        if own and (marked or own[0] in self._converted):
            return self._converted.get(own[0], own[0])
        if own:
            return f"operand of {own[0]}" if stage else own[0]
        return next((s.layer for s in sources if s.kind == "input"), "")

    def _place(self, call: Call) -> tuple[str, str, str, tuple[str, ...]]:
        """Returns the fate of a conversion of the last stage, its operator, its kernel, and the
        other operators there.
        """
        kernels = self._trace.kernels_of([call.id])
        if not kernels:
            return "kept", self._trace.reader.title(call), "", ()
        kernel: KernelTrace = kernels[0]
        nodes = self._trace.nodes(self._trace.last)
        others = [nodes[n] for n in kernel.ops if n != call.id]
        fused = any(not _accompanies(n) for n in others)
        beside = tuple(self._trace.reader.title(n) for n in others)
        return ("fused" if fused else "kernel"), call.op_name, kernel.name, beside

    def _users_at(self, stage: int) -> Mapping[int, list[Expr]]:
        if stage not in self._users:
            found: dict[int, list[Expr]] = {}
            for node in self._trace.nodes(stage).values():
                for child in node.children:  # type: ignore[attr-defined]
                    found.setdefault(child.id, []).append(node)  # type: ignore[arg-type]
            self._users[stage] = found
        return self._users[stage]


def _conversions(nodes: Iterable[Any]) -> list[Call]:
    return [n for n in nodes if isinstance(n, Call) and _is_conversion(n)]


def _is_conversion(call: Call) -> bool:
    """Whether a call only changes how a value is stored."""
    if not isinstance(call.op, Op) or not isinstance(call.type, TensorType):
        return False
    if call.op_name in QUANTIZED or call.op_name == _LAYOUT:
        return True
    if call.op_name != _CAST:
        return False
    dtypes = {call.tensor.dtype, call.args[0].tensor.dtype}
    return bool(dtypes & _NARROW) and len(dtypes) == 2


def _behind_limits(call: Call) -> Call:
    """Returns the step whose integers a call only limits, as a fused activation does; else the
    call.
    """
    value = call.args[0] if call.op_name == "clip" else None
    return value if isinstance(value, Call) and _is_conversion(value) else call


def _accompanies(node: Any) -> bool:
    """Whether an operator may stand beside a conversion without being work for a layer."""
    if not isinstance(node, Call) or _is_conversion(node) or node.op_name in _WITH:
        return True
    return node.op_name in _ADJUSTING and node.tensor.dtype.startswith(("i", "u"))


def _numbers(call: Call) -> dict[str, Any]:
    """Returns the scale and the zero point of a step, or the number of its scales."""
    if call.op_name not in QUANTIZED[:2] or not isinstance(call.args[1], Constant):
        return {}
    scale = call.args[1].data
    found: dict[str, Any] = {"scales": scale.size}
    if scale.size == 1:
        found["scale"] = float(scale.reshape(-1)[0])
    zero = call.args[2].data if len(call.args) > 2 and isinstance(call.args[2], Constant) else None
    if len(call.args) < 3 or (zero is not None and zero.size and (zero == zero.flat[0]).all()):
        found["zero"] = 0 if zero is None else int(zero.flat[0])
    return found


def _stored(before: TensorType, after: TensorType) -> tuple[str, str]:
    if before.dtype == after.dtype:
        return before.layout or "plain", after.layout or "plain"
    return before.dtype, after.dtype


def _computing(node: Any) -> Any:
    """Returns the operator that gives the result of a call of a kernel; else the node."""
    if isinstance(node, Call) and isinstance(node.op, Function) and node.op.is_primitive:
        return node.op.body
    return node
