"""Kernels for all sizes at sizes of 0, behind guard pages, against the operators' references: the
samples of operators, with names in place of their sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from sized import FreeSample, SizedKernel, difference, free_samples

from clew import te
from clew.backends.cpu.lowering import KernelSource
from clew.codegen.shared import plan_of
from clew.ir.dims import Dim, SymDim
from clew.ir.types import TensorType
from clew.loop.affine import Simplifier
from clew.loop.ir import Store, walk
from clew.loop.lower import lower
from clew.machine.needs import check_machine, needs_of
from clew.machine.target import Target, target_of
from clew.ops.registry import Op, all_ops, get_op
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError, CompileError
from clew.te.analysis import Kind


def _target() -> Target:
    """Returns the widest target that this machine can run."""
    for name in ("cpu-avx512", "cpu-avx2"):
        found = target_of(name)
        try:
            check_machine(needs_of(found.triple, found.cpu, found.features))
        except CompileError:
            continue
        return found
    return target_of("cpu")


TARGET = _target()


# One operator for each way of combining elements.
COMBINING = (
    *("sum", "argmax", "cumsum", "nonzero_positions", "nn.matmul", "nn.softmax", "nn.conv2d"),
)


def chosen(op: Op, most: int, *, maps: bool) -> Iterator[tuple[str, FreeSample]]:
    """Yields up to `most` samples whose sizes are names, from 0 on, of an operator that maps
    elements, or that combines them.
    """
    found = 0
    for n, sample in enumerate(s for s in op.samples if not s.error):
        for names in free_samples(op, sample):
            try:
                free = FreeSample(op, sample, names, least=0)
                types = [t for t in free.types if isinstance(t, TensorType)]
                if (op.kind(types, free.function.body.attrs) <= Kind.INJECTIVE) != maps:
                    break
            except ClewError:  # its attributes hold numbers, or its constants do
                continue
            yield f"{op.name}-{n}({','.join(map(str, names))})", free
            found += 1
            if found == most:
                return


def some_sizes(given: dict[str, int]) -> list[dict[str, int]]:
    """Returns 0 for each size alone and for all, and sizes that are not 0."""
    alone = [{**given, name: 0} for name in given]
    return [*alone, dict.fromkeys(given, 0), given, dict.fromkeys(given, 19)]


OPS = [op for op in all_ops() if op.is_builtin and op.compute and not op.host]


@pytest.mark.parametrize("most", [2, pytest.param(9, marks=pytest.mark.exhaustive)])  # 700 kernels
def test_operators_that_map_elements(most: int) -> None:
    empty, with_results = _compare(OPS, most, maps=True)
    assert len(empty) > 100
    assert min(with_results["concatenate"], with_results["pad"]) > 0


def test_operators_that_combine_elements() -> None:
    _, with_results = _compare(map(get_op, COMBINING), 1, maps=False)
    assert min(with_results["sum"], with_results["nn.matmul"]) > 0


@pytest.mark.exhaustive  # 200 kernels
def test_all_operators_that_combine_elements() -> None:
    empty, _ = _compare(OPS, 2, maps=False)
    assert len(empty) > 50


def _compare(ops: Iterable[Op], most: int, *, maps: bool) -> tuple[Counter[str], Counter[str]]:
    """Compares operators, and returns how often operands of each were empty, and how often with
    results that have elements.
    """
    wrong: list[str] = []
    empty, with_results = Counter[str](), Counter[str]()
    for op in ops:
        for name, free in chosen(op, most, maps=maps):
            try:
                kernel = SizedKernel(free.function, TARGET)
            except ClewError:  # it needs its sizes as numbers
                continue
            for number, sizes in enumerate(some_sizes(free.given)):
                if not (kernel.is_valid(sizes, least=0) and free.accepts(sizes)):
                    continue
                arrays = free.arrays(sizes)
                threads, side = 1 + number % 2, list(GuardSide)[number // 2 % 2]
                try:
                    expected = kernel.expected(arrays, sizes)
                    found = kernel.run(arrays, sizes, threads, side)
                except ClewError as error:
                    if error.code != "I320":  # an index of the sample is out of range
                        raise
                    continue
                for a, b in zip(found, expected, strict=True):
                    what = difference(a, b)
                    wrong += [f"{name} at {sizes}: {what}"] if what else []
                if any(a.size == 0 for a in arrays):
                    empty[op.name] += 1
                    with_results[op.name] += any(a.size > 0 for a in found)
    assert not wrong, "\n".join(wrong)
    return empty, with_results


def test_kernels_for_sizes_from_0_and_from_1_differ() -> None:
    """They may have the same text, but not the same code."""
    op = get_op("exp")
    sample = next(s for s in op.samples if not s.error and any(free_samples(op, s)))
    names = next(free_samples(op, sample))
    first, second = (FreeSample(op, sample, names, least).function for least in (0, 1))
    assert str(first.type) == str(second.type)
    assert KernelSource(first, TARGET).key != KernelSource(second, TARGET).key


@pytest.mark.parametrize("rows", [16, SymDim.symbol("n"), SymDim.symbol("z", least=0)], ids=str)
def test_no_element_of_an_empty_buffer_is_read_ahead_of_its_branch(rows: Dim) -> None:
    start, flag = te.placeholder((9,), "i64", "start"), te.placeholder((rows,), "f32", "flag")
    left, right = (te.placeholder((rows,), "i64", name) for name in ("left", "right"))

    def walked(i: te.Scalar) -> te.Scalar:
        node = start[i]
        for _ in range(8):
            node = te.select(flag[node] > 0.0, left[node], right[node])
        return te.select(start[i] > 3, node, 0)  # no step is certain

    nest = lower("walk", [start, flag, left, right], [te.compute((9,), walked, "walked")])
    (store,) = (stmt for stmt in walk(nest.body) if isinstance(stmt, Store))
    plan = plan_of(Simplifier().canonical(store.value, {}), 64)
    parts = plan.parts if plan is not None else ()
    uncertain = [part for part in parts if plan is not None and id(part) not in plan.certain]
    assert bool(uncertain) == (rows != SymDim.symbol("z", least=0))
