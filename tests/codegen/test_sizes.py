"""One kernel for all sizes, at many sizes, behind guard pages, against the operators' references.

The samples of all operators, with names in place of their sizes, and kernels as models have them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sized import Array, FreeSample, SizedKernel, difference, draw, free_samples
from sized_cases import CASES, built

from clew.ir.dims import SymDim, substitute
from clew.ir.types import TensorType, leaves
from clew.machine.needs import check_machine, needs_of
from clew.machine.target import Target, target_of
from clew.ops.registry import Op, Sample, all_ops
from clew.ops.sample_checks import call_of, types_of
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError, CompileError

WIDE = target_of("cpu-avx512")
VALUES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 67, 100, 130)
_SAMPLES_OF_AN_OPERATOR = 4
_PARTS = 6
_SAMPLES_OF_A_KERNEL = 24  # of operators whose kernels have rules of their own

# Samples whose kernel needs its sizes as numbers, with the code of the error. Models with such
# kernels are built again for each set of sizes.
NOT_SIZED = {
    # Guards of a tile that the simplifier does not decide keep its registers from being set.
    "nn.conv2d-5(2)": "S041",
    # Vectors along a window of a size that only a run knows.
    "nn.conv2d-7(3)": "S070",
    # Parts of a weight of free size.
    "nn.conv2d_by_size-2(3)": "T107",
}
# Samples whose kernel is valid at other sizes at most, because `needs_of` finds no proof that its
# accesses are inside.
NOT_AT_ITS_SIZES = {
    "nn.col2im-0(5)",
    "nn.col2im-2(12)",
    "nn.col2im-2(32)",
    "nn.col2im-3(8,12)",
    "nn.col2im-5(12)",
    "nn.conv1d_transpose-0(3,4,5)",
    "nn.conv2d_transpose-1(2)",
    "nn.conv3d_transpose-0(2,3)",
    "nn.dense-11(3)",
    "scatter_elements_few-1(2)",
    "tensor_scatter-2(3)",
}


def can_run(target: Target) -> bool:
    try:
        check_machine(needs_of(target.triple, target.cpu, target.features))
    except CompileError:
        return False
    return True


OPS = [op for op in all_ops() if op.is_builtin and op.compute and not op.host]


def chosen(op: Op) -> Iterator[tuple[int, Sample, dict[int, str]]]:
    """Yields samples of an operator, each with names for its sizes: now for all, now for one."""
    most = _SAMPLES_OF_A_KERNEL if op.name.startswith("nn.") else _SAMPLES_OF_AN_OPERATOR
    for n, sample in enumerate(s for s in op.samples if not s.error):
        types = [*types_of(sample), *leaves(call_of(op, sample).type)]
        if most == 0 or any(0 in t.shape for t in types if isinstance(t, TensorType)):
            continue
        names = list(free_samples(op, sample))
        if names:
            most -= 1
            yield n, sample, names[n % len(names)]


def some_sizes(given: dict[str, int], seed: str, count: int) -> list[dict[str, int]]:
    """Returns the given sizes, 1 for all, and others. Many sizes are small."""
    rng = random.Random(seed)
    values = VALUES if len(given) < 3 else VALUES[:15]
    drawn = ({name: rng.choice(values) for name in given} for _ in range(4 * count))
    return [given, dict.fromkeys(given, 1), *drawn]


def check(
    kernel: SizedKernel, arrays: list[Array], sizes: dict[str, int], number: int
) -> Iterator[str]:
    """Runs a kernel at sizes. The number of the run decides threads and the guarded side."""
    expected = kernel.expected(arrays, sizes)
    side, threads = list(GuardSide)[number % 2], 1 + number // 2 % 2
    found = kernel.run(arrays, sizes, threads, side)
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        what = difference(a, b)
        if what:
            yield f"{kernel.source.rules} at {sizes}, {threads} threads, result {n}: {what}"


# In parts, of which `make test` runs some, because there are 700 kernels.
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_samples_with_names_for_their_sizes(op: Op, part: int) -> None:
    wrong: list[str] = []
    kernels: list[tuple[str, FreeSample, SizedKernel]] = []
    for n, sample, names in list(chosen(op))[part::_PARTS]:
        name = f"{op.name}-{n}({','.join(map(str, names))})"
        try:
            free = FreeSample(op, sample, names)
        except ClewError:  # its attributes hold numbers, or its constants do
            continue
        try:
            kernels.append((name, free, SizedKernel(free.function, WIDE)))
        except ClewError as error:
            if NOT_SIZED.get(name) != error.code:
                wrong.append(f"{name}: {error}")
        else:
            if name in NOT_SIZED:
                wrong.append(f"{name} is possible now: remove it from NOT_SIZED")
    for name, free, kernel in kernels:
        if kernel.is_valid(free.given) == (name in NOT_AT_ITS_SIZES):
            wrong.append(f"{name}: NOT_AT_ITS_SIZES says otherwise, needs {kernel.code.needs}")
        if not can_run(WIDE):
            continue
        runs = 0
        for sizes in some_sizes(free.given, name, 5):
            if runs == 5 or not (free.accepts(sizes) and kernel.is_valid(sizes)):
                continue
            try:
                arrays = free.arrays(sizes)
                wrong += (f"{name} {w}" for w in check(kernel, arrays, sizes, runs))
            except ClewError as error:
                if error.code != "I320":  # an index of the sample is out of range
                    raise
            runs += 1
    assert not wrong, "\n".join(wrong)


# Seconds to compile, and much like other windows.
_LONG = ("conv_blocked_stride", "depthwise_blocked_stride", "max_pool_blocked")
TARGETS = [t for t in ("cpu", "cpu-avx2") if can_run(target_of(t))]


@pytest.mark.parametrize(
    ("case", "target"),
    [  # now on one target, now on another: the rest is exhaustive, and differs in vectors only
        pytest.param(
            case,
            target,
            marks=[pytest.mark.exhaustive] if (n + k) % len(TARGETS) or case in _LONG else [],
        )
        for n, case in enumerate(CASES)
        for k, target in enumerate(TARGETS)
    ],
)
def test_kernels_of_models(case: str, target: str) -> None:
    made = built(CASES[case])
    kernel = SizedKernel(made.function, target_of(target))
    free = dict.fromkeys(sorted({n for d in kernel.code.sizes for n in d.symbols}), 33)
    wrong: list[str] = []
    runs = 0
    for sizes in some_sizes(free, case, 12):
        if runs == 12 or not kernel.is_valid(sizes):
            continue
        wrong += check(kernel, arrays_at(made, sizes), sizes, runs)
        runs += 1
    assert not wrong, "\n".join(wrong)
    assert runs >= 8


AMX = "+amx-bf16,+amx-int8,+amx-tile,+avx512bf16,+avx512fp16,+avx512vnni"
TILES = replace(
    WIDE, name="cpu-amx", features=f"{WIDE.features},{AMX}", l1_bytes=48 << 10, l2_bytes=2 << 20
)


@pytest.mark.parametrize("inner", [512, 2048])
@pytest.mark.parametrize("dtypes", ["bf16 bf16", "u8 i8"])
def test_streamed_products_of_a_matrix_unit(dtypes: str, inner: int) -> None:
    """Their prefetches are no loops between the tiles, at all sizes."""
    data, weight = dtypes.split()
    group = 2 if data == "bf16" else 4

    def make(g: Any) -> Any:
        packed = g.x(64, inner // group, 32, group, dtype=weight)
        return g(
            "nn.dense", g.x("m", inner, dtype=data), packed,
            weight_layout=f"NK32n{group}k", units=2048,
        )  # fmt: skip

    made = built(make)
    kernel = SizedKernel(made.function, TILES)
    assert kernel.code.sizes == (SymDim.symbol("m"),)
    assert kernel.is_valid({"m": 100})


def arrays_at(made: Any, sizes: dict[str, int]) -> list[Array]:
    """Returns arguments at sizes, the same at each call."""
    generator = np.random.default_rng(0)
    found = []
    for param, (low, high) in zip(made.function.params, made.bounds, strict=True):
        shape = tuple(substitute(d, sizes) for d in param.type.shape)
        found.append(draw(generator, param.type.with_(shape=shape), low, high))
    return found
