"""Primitives on the shapes of buffers: merging of axes that are contiguous in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from clew.ir.dims import Dim, product
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import Buffer, For, Nest, Stmt, Store, block, reads, walk
from clew.loop.primitives.common import canonical_store, primitive, stage_statements
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import Binary, Imm, Index, Load, Scalar, Size, binary, size
from clew.te.roles import merged
from clew.te.walk import map_loads, nodes, substitute


@primitive
def flatten(
    nest: Nest,
    simplifier: Simplifier,
    *,
    stages: tuple[str, ...],
    first: int,
    count: int,
    keep: tuple[str, ...] = (),
) -> Nest:
    """`for h in 7: for w in 7: s[h, w] = a[h, w]` becomes `for h+w in 49: s[h+w] = a[h+w]`.

    The `count` axes from `first` on are merged in the loops of the stages, which share them, and in
    every buffer that is walked along them; memory is unchanged. Buffers in `keep`, which other
    stages use, are viewed this way by these stages only.

    Errors: S002; S027 if an access walks these axes in another way, or if a stage's loops have
    already been changed.
    """
    merged = _Merged(simplifier, count, frozenset(keep))
    own: dict[int, Stmt] = {}
    for stage in stages:
        for stmt in stage_statements(nest, stage):
            found = canonical_store(stmt)
            if found is None or len(found[1].indices) < first + count:
                raise _unfit(f"stage {stage!r}", "has already been changed")
            loops = {id(loop.index): loop for loop in found[0]}
            axes = [loops[id(i)] for i in found[1].indices[first : first + count]]
            own[id(stmt)] = merged.nest(found[0], found[1], axes)
    stmts: list[Stmt] = []
    for stmt in nest.body.stmts:
        if id(stmt) not in own:
            merged.check_untouched(stmt)
        stmts.append(own.get(id(stmt), stmt))
    inputs, outputs = (tuple(map(merged.of, bs)) for bs in (nest.inputs, nest.outputs))
    return replace(nest, inputs=inputs, outputs=outputs, body=block(*stmts))


def _unfit(what: str, how: str) -> ScheduleError:
    return ScheduleError(
        "S027",
        f"{what} {how}",
        hint="flatten axes that all accesses walk together, before other primitives",
    )


@dataclass
class _Merged:
    """Buffers with merged axes: the old buffer, the position of the axes, and the new buffer, by
    the old buffer's id; `kept` are buffers that are not walked along these axes.
    """

    simplifier: Simplifier
    count: int
    shared: frozenset[str]
    buffers: dict[int, tuple[Buffer, int, Buffer]] = field(default_factory=dict)
    kept: dict[int, Buffer] = field(default_factory=dict)

    def of(self, buffer: Buffer) -> Buffer:
        """Returns the current form of a kernel argument."""
        if id(buffer) not in self.buffers or buffer.name in self.shared:
            return buffer
        return self.buffers[id(buffer)][2]

    def check_untouched(self, stmt: Stmt) -> None:
        """Checks that an unchanged statement does not use a changed buffer."""
        used = [load.source for _, load in reads(stmt)]
        used += [s.buffer for s in walk(stmt) if isinstance(s, Store)]
        for buffer in used:
            if id(buffer) in self.buffers and buffer.name not in self.shared:
                raise _unfit(buffer.name, "is used by another stage")

    def nest(self, around: list[For], store: Store, axes: list[For]) -> Stmt:
        """Returns a stage's loops and store with `axes` merged."""
        name = "+".join([axes[0].name, *(a.name.rsplit(".", 1)[-1] for a in axes[1:])])
        role = merged(*(a.index.role for a in axes))
        index = Index(name, product(tuple(a.size for a in axes)))
        for axis in axes:
            index = index.merged(axis.index, name, index.extent, role)

        def change(load: Load, new: Sequence[Scalar]) -> Scalar:
            moved, indices = self._access(load.source, tuple(new), axes, index)
            return Load(moved, indices)

        value = map_loads(store.value, change)
        if any(contains(value, a.index) for a in axes):
            raise _unfit(f"stage {store.stage!r}", f"depends on {axes[0].name} alone")
        buffer, indices = self._access(store.buffer, store.indices, axes, index)
        if buffer is store.buffer:  # an axis of one element: the index does not move along it
            raise _unfit(f"stage {store.stage!r}", f"has one element along {axes[0].name}")
        body: Stmt = replace(store, buffer=buffer, indices=indices, value=value)
        for loop in reversed(around):
            if loop is axes[0]:
                body = For(index, loop.kind, body)
            elif all(loop is not a for a in axes):
                body = replace(loop, body=body)
        return body

    def _access(
        self, buffer: Buffer, indices: tuple[Scalar, ...], axes: list[For], index: Index
    ) -> tuple[Buffer, tuple[Scalar, ...]]:
        simple = [self.simplifier.simplify(i) for i in indices]
        moving = [n for n, i in enumerate(simple) if any(contains(i, a.index) for a in axes)]
        if not moving:
            if id(buffer) in self.buffers:
                raise _unfit(buffer.name, "is walked in several ways")
            self.kept[id(buffer)] = buffer
            return buffer, indices
        at, end = moving[0], moving[0] + self.count
        walked = moving[-1] < end <= len(simple) and all(
            buffer.shape[n] == a.size and (simple[n] is a.index or a.size == 1)
            for n, a in zip(range(at, end), axes, strict=True)
        )
        before = self.buffers.get(id(buffer))
        counted = None if walked or before is not None else self._counted(indices, axes, index)
        if counted is not None:
            self.kept[id(buffer)] = buffer
            return buffer, counted
        if not walked or id(buffer) in self.kept or (before is not None and before[1] != at):
            raise _unfit(buffer.name, f"is not walked along {axes[0].name} and the following axes")
        if before is None:
            shape = (*buffer.shape[:at], product(buffer.shape[at:end]), *buffer.shape[end:])
            memory = buffer.root if buffer.name in self.shared else buffer.memory
            view = replace(buffer, shape=shape, memory=memory)
            before = self.buffers[id(buffer)] = (buffer, at, view)
        return before[2], (*indices[:at], index, *indices[end:])

    def _counted(
        self, indices: tuple[Scalar, ...], axes: list[For], index: Index
    ) -> tuple[Scalar, ...] | None:
        """Returns indices that depend on the axes only through the number of the step along all of
        them, such as `(h * 7 + w) // 16`; None if one depends on a single axis.
        """
        places: dict[int, Scalar] = {}
        rest: Scalar = index
        for axis in reversed(axes[1:]):
            inside = size(axis.size)
            places[id(axis.index)] = binary("mod", rest, inside)
            rest = binary("floordiv", rest, inside)
        places[id(axes[0].index)] = rest
        made = tuple(self.simplifier.simplify(substitute(i, places)) for i in indices)
        sizes = {a.size for a in axes[1:]}
        asked = [_divisors(i) for i in indices]
        alone = (_divisors(i) & sizes - before for i, before in zip(made, asked, strict=True))
        return None if any(alone) else made


def _divisors(expr: Scalar) -> set[Dim]:
    """Returns the sizes that an expression divides by, which only a run may know to be above 0."""
    found: set[Dim] = set()
    for node in nodes(expr):
        if isinstance(node, Binary) and node.op in ("floordiv", "mod"):
            match node.b:
                case Imm(value=int() as by):
                    found.add(by)
                case Size(dim=by):
                    found.add(by)
    return found
