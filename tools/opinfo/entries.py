"""The entries of torch's operator database, and their samples as modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "bool": torch.bool,
    "bf16": torch.bfloat16,
}


@dataclass(frozen=True)
class Task:
    """The samples of one entry in one dtype."""

    entry: str
    dtype: str


def entries() -> dict[str, Any]:
    """Returns the entries by name; a variant has its name behind a colon."""
    found: dict[str, Any] = {}
    for op in [*op_db, *hop_db]:
        found[f"{op.name}:{op.variant_test_name}" if op.variant_test_name else op.name] = op
    return found


def tasks(names: Sequence[str] = (), dtypes: Sequence[str] = tuple(DTYPES)) -> list[Task]:
    """Returns the entries with these names, or starts of names that end in `*`, in each dtype that
    eager PyTorch supports on the CPU.
    """
    return [
        Task(name, dtype)
        for name, op in sorted(entries().items())
        if not names or any(_fits(name, wanted) for wanted in names)
        for dtype in dtypes
        if DTYPES[dtype] in op.supported_dtypes("cpu")
    ]


def _fits(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


class Sample(torch.nn.Module):
    """A call with the arguments of one sample. Tensors are inputs of the module; all else is part
    of it.
    """

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op.op
        leaves, self.tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.inputs = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
        self.leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self.places = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.changes = False
        """Whether the operator changes its arguments: then it takes copies of the inputs."""
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Returns what the operator returns."""
        if self.changes:
            tensors = tuple(x.clone() for x in tensors)
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return self.op(first, *args, **kwargs)


class Samples(torch.nn.Module):
    """Several samples in one module, one after another: one export and one build serve all."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.samples = list(samples)
        self.inputs = [x for sample in samples for x in sample.inputs]
        self.eval()

    @property
    def changes(self) -> bool:
        """Whether operators take copies of the inputs."""
        return any(sample.changes for sample in self.samples)

    @changes.setter
    def changes(self, value: bool) -> None:
        for sample in self.samples:
            sample.changes = value

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Returns the results of all."""
        results = []
        for sample in self.samples:
            count = len(sample.inputs)
            results.append(sample(*tensors[:count]))
            tensors = tensors[count:]
        return results


@contextmanager
def in_f64(module: Sample | Samples) -> Iterator[Sample | Samples]:
    """A context in which a module computes in f64: arguments that are dtypes of floats name f64,
    and integers become f64 where they become floats.
    """
    samples = module.samples if isinstance(module, Samples) else [module]
    given, dtype = [sample.leaves for sample in samples], torch.get_default_dtype()
    for sample in samples:
        sample.leaves = [_WIDE.get(x, x) if _is_dtype(x) else x for x in sample.leaves]
    torch.set_default_dtype(torch.float64)
    try:
        yield module
    finally:
        torch.set_default_dtype(dtype)
        for sample, leaves in zip(samples, given, strict=True):
            sample.leaves = leaves


def _is_dtype(leaf: Any) -> bool:
    return isinstance(leaf, torch.dtype)


_WIDE: Final = {
    torch.bfloat16: torch.float64, torch.float16: torch.float64, torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}  # fmt: skip


def samples_of(task: Task, most: int | None) -> list[Sample]:
    """Returns the samples of an entry, the same in each run; `most` are spread over all."""
    op = entries()[task.entry]
    torch.manual_seed(0)
    found = list(op.sample_inputs("cpu", DTYPES[task.dtype], requires_grad=False))
    if most is not None and most < len(found):
        found = [found[n * len(found) // most] for n in range(most)]
    if task.entry in _ORDERS:
        found = [_stable(sample) for sample in found]
    return [Sample(op, sample) for sample in found]


# Of equal elements, torch leaves the order open unless it is asked for.
_ORDERS: Final = ("argsort", "sort")


def _stable(sample: Any) -> Any:
    given = dict(zip(("dim", "descending"), sample.args, strict=False)) | sample.kwargs
    return type(sample)(sample.input, kwargs={**given, "stable": True})
