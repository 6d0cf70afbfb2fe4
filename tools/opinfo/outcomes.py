"""What becomes of one sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
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
from opinfo.entries import Sample, Samples

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
    exact: list[Any] | None = None
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
            exact = exact or _precise(module)
            if not _nearer(got, tensor, exact[n] if n < len(exact) else None):
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


def _precise(module: Sample | Samples) -> list[Any]:
    """Returns eager results of the same inputs in f64, nothing if the operator has none."""
    try:
        torch.manual_seed(0)
        wide = [x.double() if x.is_floating_point() else x for x in module.inputs]
        found = pytree.tree_leaves(module(*wide))
    except Exception:
        return []
    return [x for x in found if isinstance(x, (torch.Tensor, bool, int, float, complex))]


def _nearer(got: torch.Tensor, want: torch.Tensor, exact: Any) -> bool:
    """Whether each element that is not within the tolerances is about as near to the value in f64
    as eager PyTorch's is: sums in another order, and bf16 without the roundings between operators,
    which clew fuses.
    """
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape:
        return False
    if not want.is_floating_point() or not exact.is_floating_point():
        return False
    a, b, c = got.double(), want.double(), exact.double()
    ours, theirs = (a - c).abs(), (b - c).abs()
    close = torch.isclose(a, b, rtol=_RTOL[want.dtype], atol=1e-5, equal_nan=True)
    fine = close | (ours <= 2 * theirs) | (torch.isnan(a) & torch.isnan(b))
    # Half precision: the operators that a call is made of round once each, at their scale.
    if want.dtype in (torch.bfloat16, torch.float16) and c.numel():
        fine |= ours <= c.nan_to_num(0, 0, 0).abs().max() * torch.finfo(want.dtype).eps
    return bool(fine.all())


_RTOL: Final = {
    torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2,
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
