"""Sizes, batches, threads and precision: how a model is compiled and called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from clew.advice.candidate import Candidate, Change
from clew.advice.graphs import is_static
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject
from clew.cost.products import fastest_float
from clew.ir.types import TensorType
from clew.runtime.threads import thread_count

_FIXED: Final = 0.05  # of a call, that known sizes may save
_THREADS: Final = 0.1
_NARROW: Final = 0.3


@register_advice
class FixedSizes(AdviceRule):
    """A model with free dimensions that is called with one set of sizes can be compiled for it."""

    name: ClassVar[str] = "fixed-sizes"
    title: ClassVar[str] = "free dimensions that every call gives the same size"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate if all samples have the same sizes."""
        free: dict[str, int] = {}
        for number, param in enumerate(subject.module.main.params):
            if is_static(param) or not isinstance(param.type, TensorType):
                continue
            shapes = {sample[number].shape for sample in subject.samples}
            if len(shapes) != 1:
                return
            for dim, size in zip(param.tensor.shape, next(iter(shapes)), strict=True):
                if not isinstance(dim, int):
                    free[str(dim)] = size
        if not free:
            return
        given = ", ".join(f"{name}={size}" for name, size in free.items())
        yield Candidate(
            self.name,
            f"fix the free sizes: {given}",
            "all samples have these sizes, and kernels for known sizes are unrolled and tiled",
            f"--sizes {given}, or an export without dynamic axes",
            (),
            "option",
            "interface",
            Change(options={"sizes": free}),
            share=_FIXED,
        )


@register_advice
class Threads(AdviceRule):
    """A small model may be slower on all threads than on one; a large model may be faster."""

    name: ClassVar[str] = "threads"
    title: ClassVar[str] = "another number of threads"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each power of two up to the number of CPUs."""
        most, count = thread_count(None), 1
        while count <= most:
            if count != subject.threads:
                share = 1 - subject.threads / count if count > subject.threads else _THREADS
                yield Candidate(
                    self.name,
                    f"run on {count} thread{'s' if count > 1 else ''} instead of {subject.threads}",
                    "kernels divide their work among threads, which also takes time",
                    f"--threads {count}",
                    (),
                    "option",
                    "exact",
                    Change(options={"threads": count}),
                    share=share,
                )
            count *= 2


@register_advice
class NarrowProducts(AdviceRule):
    """Products in bf16 or f16 are faster if the machine has instructions for them."""

    name: ClassVar[str] = "narrow-products"
    title: ClassVar[str] = "products that can be computed in bf16 or f16"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for the dtype with the fastest products, unless it is f32."""
        fastest = fastest_float(subject.target)
        current = subject.options.precision
        if fastest == "f32" or getattr(current, "precision", current) != "f32":
            return
        yield Candidate(
            self.name,
            f"multiply in {fastest}",
            f"this machine has instructions for products of {fastest}",
            f"--precision {fastest}; --keep-f32 for layers that need f32 (clew precision)",
            (),
            "option",
            "approximation",
            Change(options={"precision": fastest}),
            share=_NARROW,
        )
