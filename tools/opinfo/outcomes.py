"""What becomes of one sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _pytree as pytree

import clew
from clew.frontends.torch.decompositions import WHOLE
from clew.frontends.torch.exporting import program_of
from clew.frontends.torch.places import is_layer
from clew.frontends.torch.registry import name_of
from clew.frontends.torch.tensors import reader, writer
from clew.support.errors import ClewError
from opinfo.entries import Sample, Samples, in_f64

KINDS: Final = (
    "agrees", "random", "differs", "refused", "bug", "crash", "slow", "not exportable", "no eager",
)  # fmt: skip
GOOD: Final = ("agrees", "random", "not exportable", "no eager")
WORST: Final = ("differs", "bug", "crash", "slow")
# Results without defined values.
UNDEFINED: Final = (
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted",
)  # fmt: skip
# Of equal elements, any may be the one whose place is the second result.
TIES: Final = ("kthvalue", "median", "mode", "nanmedian", "topk")
_CHARACTERS: Final = 240


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sample: one of `KINDS`, the reason, and the operators in the program's graph
    that are not of core ATen and that clew does not ask for.
    """

    kind: str
    reason: str = ""
    others: tuple[str, ...] = ()
    exported: bool = False


class Differs(Exception):
    """A wrong result."""


def outcome(module: Sample | Samples, name: str) -> Outcome:
    """Returns the outcome of a sample, or of several together."""
    with warnings.catch_warnings(), torch.no_grad(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            wanted = _eager(module)
        except Exception as error:  # of any type: it is torch's
            return Outcome("no eager", _line(error))
        try:
            exported = torch.export.export(module, _copies(module.inputs), strict=False)
        except Exception as error:
            return Outcome("not exportable", _line(error))
        try:
            program = program_of(exported, (), None, None)
        except Exception as error:
            return _undecomposed(exported, error)
        others = tuple(sorted(set(_others(program.graph.nodes))))
        random = name in UNDEFINED or any(map(_draws, exported.graph.nodes))
        random = random or not _same(wanted, module)
        try:
            _run(module, program, wanted, random, name in TIES)
        except Differs as error:
            return Outcome("differs", _line(error), others, True)
        except ClewError as error:
            kind = "bug" if error.code.startswith("C") else "refused"
            return Outcome(kind, _line(error), others, True)
        except Exception as error:
            return Outcome("bug", _line(error), others, True)
    return Outcome("random" if random else "agrees", "", others, True)


def _undecomposed(exported: Any, error: Exception) -> Outcome:
    """Returns the outcome of a program that cannot be decomposed: torch's doing, if it cannot be
    with torch's own table either.
    """
    try:
        exported.run_decompositions()
    except Exception:
        return Outcome("not exportable", _line(error))
    return Outcome("bug", _line(error), (), True)


def _others(nodes: Iterable[Any]) -> Iterable[str]:
    for node in nodes:
        tags = getattr(node.target, "tags", ())
        if is_layer(node) and node.target not in WHOLE and torch.Tag.core not in tags:
            yield name_of(node.target)


def _draws(node: Any) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _copies(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(x.clone(memory_format=torch.preserve_format) for x in tensors)


def _eager(module: Sample | Samples) -> list[Any]:
    """Returns the results that are numbers, in order."""
    tensors = _copies(module.inputs)
    found = pytree.tree_leaves(module(*tensors))
    module.changes |= not all(map(_equal, tensors, module.inputs))
    return [x for x in found if isinstance(x, (torch.Tensor, bool, int, float, complex))]


def _same(wanted: Sequence[Any], module: Sample | Samples) -> bool:
    """Whether another seed gives the same values."""
    torch.manual_seed(1)
    again = _eager(module)
    pairs = zip(wanted, again, strict=False)
    return len(wanted) == len(again) and all(_equal(a, b) for a, b in pairs)


def _equal(a: Any, b: Any) -> bool:
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    except (AssertionError, RuntimeError):
        return False
    return True


def _run(
    module: Sample | Samples, program: Any, wanted: Sequence[Any], random: bool, ties: bool
) -> None:
    compiled = clew.compile(clew.from_torch(program), threads=1)
    arrays = [reader(x.dtype)(x) for x in _copies(module.inputs)]
    results = pytree.tree_leaves(compiled(*arrays))  # in the form of the call: numbers, too
    if len(results) != len(wanted):
        raise Differs(f"{len(results)} results, expected {len(wanted)}")
    exact: Exact | None = None
    for n, (one, want) in enumerate(zip(results, wanted, strict=True)):
        tensor = want if isinstance(want, torch.Tensor) else torch.tensor(want)
        got = _as_tensor(one, tensor.dtype, isinstance(want, torch.Tensor))
        if got.shape != tensor.shape or got.dtype != tensor.dtype:
            what = f"{got.dtype}{list(got.shape)}, expected {tensor.dtype}{list(tensor.shape)}"
            raise Differs(f"result {n} is {what}")
        if random:
            continue
        try:
            torch.testing.assert_close(got, tensor, equal_nan=True)
        except AssertionError as error:
            if ties and n == 1 and _are_places(module.inputs[0], wanted[0], got):
                continue
            exact = exact or Exact(module)
            if not _nearer(got, tensor, exact, n):
                raise Differs(f"result {n}: {error}") from None


def _are_places(x: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> bool:
    """Whether the values stand at these places of some axis."""
    for axis in range(x.dim()):
        index, want = places, values
        if index.dim() < x.dim():
            index, want = index.unsqueeze(axis), want.unsqueeze(axis)
        others = [n for n in range(x.dim()) if n != axis]
        if all(index.shape[n] == x.shape[n] for n in others):
            inside = bool(((index >= 0) & (index < x.shape[axis])).all())
            if inside and _equal(x.gather(axis, index), want):
                return True
    return False


def _as_tensor(array: Any, dtype: torch.dtype, exact: bool) -> torch.Tensor:
    array = np.asarray(array)
    if array.dtype.name == "bfloat16" and exact:
        return writer(torch.bfloat16)(np.array(array))
    found = torch.from_numpy(np.array(array))
    return found if exact else found.to(dtype)


class Exact:
    """Results of a sample in f64: those of its inputs, and of inputs that differ from them by
    roundings.
    """

    def __init__(self, module: Sample | Samples) -> None:
        self._module = module
        self._given = module.inputs
        self._floats = [n for n, x in enumerate(module.inputs) if x.is_floating_point()]
        # Inputs of an operator that takes only integers may be numbers, too (`fft.fft`).
        self._numbers = self._floats or range(len(module.inputs))
        self.results = self._run({n: module.inputs[n].double() for n in self._floats})

    def result(self, n: int) -> torch.Tensor | None:
        """Returns a result, None if the operator has none in f64."""
        return self.results[n] if n < len(self.results) else None

    def changed_by(self, relative: float, n: int) -> torch.Tensor | float:
        """Returns how far the elements of a result move if those of the inputs change by up to a
        relative amount: the largest of several random changes.
        """
        exact = self.result(n)
        if exact is None:
            return 0.0
        most = torch.zeros(exact.shape, dtype=torch.float64)
        draws = torch.Generator().manual_seed(0)
        for _ in range(_CHANGES):
            changed = {}
            for k in self._numbers:
                x = self._given[k].double()
                by = torch.rand(x.shape, generator=draws, dtype=torch.float64) * 2 - 1
                changed[k] = x * (1 + relative * by)
            found = self._run(changed)
            if n < len(found) and found[n].shape == exact.shape:
                most = torch.maximum((found[n] - exact).abs(), most)
        return most

    def _run(self, changed: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        with in_f64(self._module) as module:
            try:
                torch.manual_seed(0)
                given = [changed.get(n, x).clone() for n, x in enumerate(self._given)]
                found = pytree.tree_leaves(module(*given))
            except Exception:  # of any type: it is torch's
                return []
        tensors = [x for x in found if isinstance(x, (torch.Tensor, bool, int, float, complex))]
        return [_wide(torch.as_tensor(x)) for x in tensors]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double()


def _nearer(got: torch.Tensor, want: torch.Tensor, exact: Exact, n: int) -> bool:
    """Whether each element that is not within the tolerances is as near to the value in f64 as may
    be expected: not farther than twice eager PyTorch's, or not farther than the value moves if the
    inputs change by roundings (sums in another order; half precision, which clew and eager round
    after different operators).
    """
    precise = exact.result(n)
    if precise is None or precise.shape != want.shape or want.dtype not in _ROUNDINGS:
        return False
    a, b = _wide(got), _wide(want)
    rtol, roundings = _ROUNDINGS[want.dtype]
    ours, theirs = (a - precise).abs(), (b - precise).abs()
    fine = torch.isclose(a, b, rtol=rtol, atol=1e-5, equal_nan=True) | (ours <= 2 * theirs)
    fine |= torch.isnan(a) & torch.isnan(b)
    eps = torch.finfo(want.dtype).eps
    if bool(fine.all()):
        return True
    # Half precision: the operators that a call is made of round once each, at their scale.
    if want.dtype in (torch.bfloat16, torch.float16):
        fine |= ours <= precise.nan_to_num(0, 0, 0).abs().max() * eps
    return bool((fine | (ours <= exact.changed_by(roundings * eps, n))).all())


_CHANGES: Final = 16
# The relative tolerance, and the number of roundings of an input that results may differ by: sums
# add up roundings in f32, whereas half precision is summed in f32.
_ROUNDINGS: Final = {
    torch.float64: (1e-7, 8), torch.float32: (1.3e-6, 8), torch.float16: (1e-3, 1),
    torch.bfloat16: (1.6e-2, 1), torch.complex64: (1.3e-6, 8), torch.complex128: (1e-7, 8),
}  # fmt: skip


def _line(error: BaseException) -> str:
    """Returns an error in one line."""
    if isinstance(error, ClewError):
        where = f" ({error.position})" if error.position else ""
        text = f"error[{error.code}] {error.message}{where}"
    elif isinstance(error, Differs):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    return line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 1] + "…"
