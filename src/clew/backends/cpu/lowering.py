"""Lowers a primitive function to a kernel: te stages, loop nest, schedule, LLVM text. Each level is
computed on first use.

Everything here depends only on the function's structure, so equal functions share a kernel.
`stage_ops` links a kernel to the graph: it maps each te stage to the position of its operator among
the function's calls.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar

from clew.backends.calls import name_of
from clew.backends.cpu.channel_counts import with_channel_counts
from clew.backends.cpu.kernel_sizes import KernelSizes
from clew.backends.cpu.kernel_stages import (
    Stages,
    expected_of_way,
    operator_calls,
    to_stages,
    where_of_ways,
    with_checks,
)
from clew.backends.cpu.one_query import one_query
from clew.backends.cpu.one_row import OneRow
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.codegen.artifact import KernelCode, ObjectCode
from clew.codegen.kernel import EmittedKernel, emit_kernel
from clew.codegen.objects import toolchain
from clew.cost.work import most_operations
from clew.ir.dims import (
    Dim,
    Expected,
    SymDim,
    expected_sizes,
    expecting,
    substitute,
    value_at,
)
from clew.ir.expr import Function
from clew.ir.structural import structural_hash
from clew.ir.types import TensorType, dims_in, leaves
from clew.ir.visit import post_order
from clew.loop.either import either
from clew.loop.in_place import in_place_pairs
from clew.loop.ir import Nest
from clew.loop.lower import lower
from clew.loop.needs import needs_of
from clew.loop.printer import PrintedNest, print_nest
from clew.loop.schedule import Schedule
from clew.loop.sizes import at_sizes
from clew.machine.target import Target
from clew.ops.common import assumptions
from clew.ops.registry import Op
from clew.passes.apply_history import TUNED
from clew.passes.fusion.write_in_place import IN_PLACE
from clew.schedules import (
    NO_REQUEST,
    RULES,
    Plan,
    Request,
    Rule,
    schedule_kernel,
    schedule_melted,
    schedule_stack,
)
from clew.support.dataclass import dataclass
from clew.support.errors import CompileError
from clew.support.lazy import cached_property
from clew.support.shown import Brief, Shown
from clew.te.long_sums import widened
from clew.te.tensor import stages
from clew.version import codegen_version

T = TypeVar("T")

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")
_HEADER: Final = struct.Struct("<I")


def _level(function: Callable[[KernelSource], T]) -> cached_property[T]:
    """A level of a kernel: that of the kernel whose code it shares, if there is one."""

    @wraps(function)
    def level(source: KernelSource) -> T:
        twin = source._twin
        return function(source) if twin is None else getattr(twin, function.__name__)

    return cached_property(level)


def _tiles_of(plan: Plan) -> list[tuple[str, int | None]]:
    """Returns the rules of a plan, with the vectors in their tiles."""
    return [(each.rule, each.settings.get("vectors")) for each in plan.decisions]


class KernelSource(Shown):
    """A kernel from its primitive function down to its code. Each level is computed on first use.
    `bounds` is the treatment of indices out of range (`support.bounds`).
    """

    def __init__(
        self,
        function: Function,
        target: Target,
        by_hand: Sequence[ScheduleFor] = (),
        bounds: str = "check",
        use: str = "",
        first: KernelSource | None = None,
        way: int = 0,
        expected: Expected | None = None,
    ) -> None:
        """`use` is the name of the kernel's first use in a model, for errors. With `first`, this is
        another way to compute the results of that kernel, the one numbered `way` (`Op.ways`).
        `expected` are the sizes to optimize for, by default those now in force (`ir.dims`).
        """
        self.expected = expected_sizes() if expected is None else expected
        self.use = use
        self._first = first
        self._way = way
        self.function = function
        self.target = target
        self.by_hand = tuple(by_hand)
        self.bounds = bounds
        self.name = name_of(function)
        self._twin: KernelSource | None = None

    def _about(self) -> str:
        return self.name

    @cached_property
    def key(self) -> str:
        """The hash of everything that the native code depends on."""
        text = "|".join(
            (
                codegen_version(),
                toolchain(),
                self.name,
                structural_hash(self.function),
                self.target.key,
                *self._user_code(),
                *(f"{name}={size}" for name, size in self._expected_here()),
                *(f"{name}>=0" for name in sorted(self._from_zero())),
                *(() if self.bounds == "check" else (self.bounds,)),
            )
        )
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()

    def _expected_here(self) -> Expected:
        """Returns the expected sizes that the function has."""
        if not self.expected:
            return ()
        names = {name for dim in self._dims() for name in dim.symbols}
        return tuple((name, size) for name, size in self.expected if name in names)

    def _from_zero(self) -> set[str]:
        """Returns the names of the function's sizes that may be 0; its text does not show this."""
        return {name for dim in self._dims() for name in dim.from_zero}

    def _dims(self) -> set[SymDim]:
        """Returns the symbolic dimensions in the function's types."""
        if not self.is_sized:
            return set()
        nodes_ = (*self.function.params, *post_order(self.function.body))
        return {dim for node in nodes_ for dim in dims_in(node.type)}

    @cached_property
    def own_key(self) -> str:
        """A hash that is equal for kernels that differ only in the model's sizes that their local
        names stand for (`sizes`); empty if there are no such names, or if the kernel depends on
        more than its function.
        """
        ops = (call.op for call in operator_calls(self.function))
        is_plain = all(isinstance(op, Op) and op.is_builtin for op in ops)
        if self.by_hand or not is_plain or not self.sizes.dims or self._expected_here():
            return ""
        own = KernelSource(self.sizes.function, self.target, (), self.bounds, expected=())
        if not self.sizes.counts:
            return own.key
        # Other counts and costs may call for other schedules.
        where = where_of_ways(self.sizes.function)
        ways = [expected_of_way(substitute(dim, self.sizes.counts)) for dim in where]
        return f"{own.key}|{self.sizes.typical}|{ways}"

    def share(self, twin: KernelSource) -> None:
        """Makes this kernel share the code of one with an equal `own_key`, which is scheduled for
        the sizes of that kernel. Must be called before the first access to the levels.
        """
        self._twin = twin

    def _user_code(self) -> list[str]:
        """Returns the function's computation as text if it involves a user's operator or schedule,
        because their names do not identify their code.
        """
        if self.by_hand:
            return [self.printed.text]
        ops = [c.op for c in operator_calls(self.function)]
        if all(isinstance(op, Op) and op.is_builtin for op in ops):
            return []
        return [print_nest(way.nest).text for way, _ in self.ways]

    @cached_property
    def is_sized(self) -> bool:
        """Whether the kernel has sizes that only a run knows."""
        nodes_ = (*self.function.params, *post_order(self.function.body))
        found = (t for n in nodes_ for t in leaves(n.type))
        return any(isinstance(t, TensorType) and not t.is_static for t in found)

    @property
    def symbol(self) -> str:
        """The name of the native function."""
        if self._twin is not None:
            return self._twin.symbol
        return f"{_UNSAFE.sub('_', self.name)[:60]}_{self.key[:16]}"

    @cached_property
    def sizes(self) -> KernelSizes:
        """The function with its own names for sizes. Loop nests and code use these names, and
        everything else those of the model.
        """
        if self._first is not None:
            return self._first.sizes
        if not self.is_sized:
            return KernelSizes(self.function)
        return with_channel_counts(KernelSizes.of(self.function))

    @cached_property
    def stages(self) -> Stages:
        """The function as tensor expressions, with the model's sizes."""
        return self._stages(self.function) if self.sizes.dims else self._stages_of_nest

    @_level
    def _stages_of_nest(self) -> Stages:
        """The tensor expressions of the nest."""
        return self._stages(self.sizes.function)

    def _stages(self, function: Function) -> Stages:
        with assumptions() as needs, self._expecting():
            made = to_stages(function, self._way)
            for stage, wide in widened(stages(made.outputs)):
                made.ops[stage.name] = made.ops[wide.name]
        return with_checks(replace(made, needs=tuple(needs)), self.bounds)

    def _expecting(self) -> AbstractContextManager[None]:
        return expecting(self.expected, self.sizes.meanings)

    def in_nest(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Returns the sizes of the nest at given sizes of the model."""
        own = {name: value_at(dim, sizes) for name, dim in self.sizes.dims.items()}
        return {**sizes, **own}

    @_level
    def nest(self) -> Nest:
        """The plain loop nest."""
        like, made = self._first.nest if self._first is not None else None, self._stages_of_nest
        with self._expecting():
            in_place = IN_PLACE in self.function.attrs
            return lower(self.name, made.inputs, made.outputs, like, in_place=in_place)

    @_level
    def ways(self) -> list[tuple[KernelSource, Dim]]:
        """The ways to compute the results, this one first, each with a dimension that is 1 at the
        sizes where it is used and 0 at others. There is only one way if the schedule is written by
        hand or if indices are checked.
        """
        if self._first is not None or self.by_hand or self.stages.checks:
            return [(self, 1)]
        ways = [
            (self._other(number, where) if number else self, where)
            for number, where in enumerate(where_of_ways(self.sizes.function))
            if where != 0
        ]
        shared = one_query(self.sizes.function)
        if shared is not None:
            function, alone = shared
            return (
                [(_SourceOfOneQuery(self, function), 1)]
                if alone == 1
                else [(self, 1 - alone), (_SourceOfOneQuery(self, function), alone)]
            )
        for number, (way, where) in enumerate(ways):
            found = OneRow.of(way.nest)
            if found is not None and substitute(where, found.sizes) == 1:
                one = _SourceOfOneRow(way, found)
                if _tiles_of(one.plan) != _tiles_of(way.plan):
                    rest = where - found.where
                    others = [(way, rest)] if rest != 0 else []
                    return [*ways[:number], *others, (one, found.where), *ways[number + 1 :]]
        return ways

    def _other(self, way: int, where: Dim) -> KernelSource:
        """Returns another way, which is scheduled for sizes at which it is used."""
        expected = self.expected or expected_of_way(substitute(where, self.sizes.counts))
        return KernelSource(
            self.function, self.target, (), self.bounds, self.use, self, way, expected
        )

    @_level
    def plan(self) -> Plan:
        """The schedule, and the decisions that led to it."""
        with self._expecting():
            for choice in self.by_hand:
                made = choice.apply(self.nest, self._planned, self.target, self.use)
                if made is not None:
                    return made
            tuned = self.function.attrs.get(TUNED, "") if self._first is None else ""
            return self._planned(Request.parse(tuned) if tuned else NO_REQUEST, ())

    def _planned(self, request: Request, added: Sequence[Rule[Any]]) -> Plan:
        """Returns the plan by rules, with a user's choices and rules."""
        rules = RULES.extended(added)
        match self.function.attrs.get("fusion"):
            case "stack":
                return schedule_stack(self.nest, self._groups(), self.target, rules, request)
            case "melt":
                return schedule_melted(self.nest, self.target, rules, request)
        return schedule_kernel(self.nest, self.target, rules, request)

    def _groups(self) -> list[list[str]]:
        """Returns the stages of each group of a stacked kernel."""
        numbers = self.function.attrs["stages"]
        groups: dict[int, list[str]] = {n: [] for n in range(max(numbers) + 1)}
        for stage, position in self.stages.ops.items():
            groups[numbers[position]].append(stage)
        return list(groups.values())

    @property
    def schedule(self) -> Schedule:
        """The schedule that the rules chose."""
        return self.plan.schedule

    def finished(self) -> Nest:
        """Returns the scheduled nest of this way."""
        return self.schedule.finished()

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the schedule rules used."""
        return tuple(dict.fromkeys(rule for way, _ in self.ways for rule in way.plan.rules))

    @_level
    def scheduled_nest(self) -> Nest:
        """The nest from which code is generated."""
        return either([(way.finished(), where) for way, where in self.ways])

    @cached_property
    def printed(self) -> PrintedNest:
        """The nest as text; debug lines refer to its lines."""
        return print_nest(self.scheduled_nest, self.sizes.dims)

    @_level
    def emitted(self) -> EmittedKernel:
        """The LLVM module and the entry points."""
        with self._expecting():
            return emit_kernel(self.scheduled_nest, self.printed, self.symbol, self.target)

    @cached_property
    def code(self) -> KernelCode:
        """The description of the kernel for the runtime."""
        return self.in_model(self.own_code)

    def in_model(self, own: KernelCode) -> KernelCode:
        """Returns the description `own_code`, or an equal one, with the model's sizes."""
        code = replace(own, key=self.key).meaning(self.sizes.dims)
        if not self.sizes.needs and not self.sizes.counts:
            return code
        needs = dict.fromkeys((*self.sizes.needs, *code.needs))
        return replace(code, needs=tuple(n for n in needs if isinstance(n, SymDim)))

    @_level
    def own_code(self) -> KernelCode:
        """The description of the kernel with its local names for sizes."""
        made = self.emitted
        scratch, workspace = made.scratch_bytes, made.workspace_bytes
        in_place = in_place_pairs(self.scheduled_nest)
        checks = self._stages_of_nest.checks
        assumed = [n for way, _ in self.ways for n in way._stages_of_nest.needs]
        accesses = (n for way, _ in self.ways if made.sizes for n in needs_of(way.nest))
        needs = tuple(dict.fromkeys((*accesses, *assumed, *(made.needs if made.sizes else ()))))
        return KernelCode(
            self.key,
            made.entries,
            scratch,
            workspace,
            in_place,
            checks,
            tuple(map(SymDim.symbol, made.sizes)),
            needs=needs,
            operations=most_operations(self._stages_of_nest.outputs) if made.sizes else 0,
        )

    def binary(self, data: bytes) -> KernelBinary:
        """Returns the kernel with its object file."""
        own = self.own_code
        symbols = tuple(e.symbol for e in own.entries)
        return KernelBinary(self.code, ObjectCode(own.key, data, symbols), self.rules, own)

    def stage_op(self, stage: str) -> int | None:
        """Returns the position of the operator that a stage belongs to."""
        name = stage.split("@", 1)[0]
        return next((way.stages.ops[name] for way, _ in self.ways if name in way.stages.ops), None)


class _SpecialSource(KernelSource):
    """A way to compute a kernel in a special case, with a schedule of its own."""

    def __init__(self, first: KernelSource) -> None:
        super().__init__(
            first.function,
            first.target,
            (),
            first.bounds,
            first.use,
            first,
            first._way,
            expected=first.expected,
        )


class _SourceOfOneRow(_SpecialSource):
    """The way to compute a kernel for one row, with a schedule for this size."""

    def __init__(self, first: KernelSource, found: OneRow) -> None:
        super().__init__(first)
        self._sizes = found.sizes

    @cached_property
    def nest(self) -> Nest:
        assert self._first is not None
        return at_sizes(self._first.nest, self._sizes)


class _SourceOfOneQuery(_SpecialSource):
    """The way to compute attention for one query, by a kernel for the same memory in other
    shapes.
    """

    def __init__(self, first: KernelSource, function: Function) -> None:
        super().__init__(first)
        self._alone = function

    @cached_property
    def sizes(self) -> KernelSizes:
        assert self._first is not None
        return replace(self._first.sizes, function=self._alone)

    @cached_property
    def nest(self) -> Nest:
        made = self._stages_of_nest
        with self._expecting():
            return lower(self.name, made.inputs, made.outputs)


@dataclass(frozen=True, repr=False)
class KernelBinary(Brief):
    """A kernel's native code in the form of the cache, with the names of its schedule rules. `code`
    describes it with the model's sizes, and `own` with its local names for sizes.
    """

    code: KernelCode
    object: ObjectCode
    rules: tuple[str, ...]
    own: KernelCode

    def of(self, source: KernelSource) -> KernelBinary:
        """Returns the binary of a kernel that shares the code."""
        return replace(self, code=source.in_model(self.own))

    def to_bytes(self) -> bytes:
        """Returns the header and the object as one byte string."""
        header = json.dumps({**self.own.to_record(), "rules": self.rules}).encode()
        return _HEADER.pack(len(header)) + header + self.object.data

    @staticmethod
    def from_bytes(data: bytes, source: KernelSource) -> KernelBinary:
        """Returns the kernel of data from `to_bytes`, which was made for an equal source.

        Errors: C020 if the data does not have that form.
        """
        try:
            (length,) = _HEADER.unpack_from(data)
            header: dict[str, Any] = json.loads(data[_HEADER.size : _HEADER.size + length])
            own = KernelCode.of_record(header)
            rules = tuple(header["rules"])
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise CompileError(
                "C020", "a stored kernel is damaged", hint="clear the cache: clew cache clear"
            ) from error
        symbols = tuple(e.symbol for e in own.entries)
        code = ObjectCode(own.key, data[_HEADER.size + length :], symbols)
        return KernelBinary(source.in_model(own), code, rules, own)
