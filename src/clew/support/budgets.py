"""Limits on the resources of a model, a compilation and a run, against small hostile files.

A budget is checked before the work it limits. Exceeding it is a coded error that names the budget.
`clew.load` takes `budgets=`, `clew.compile` `limits=`, the command line `--budget NAME=VALUE`.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import fields, replace
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Final

from clew.support.dataclass import dataclass
from clew.support.errors import ClewError, CompileError, Hint, InputError, RunError
from clew.support.scoped import scoped
from clew.support.system import system_text

_MEMORY_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_VALUE: Final = r"(\d{1,30})([kmgt]?)"


@lru_cache(maxsize=1)
def _physical_bytes() -> int:
    """Returns the memory of the machine, or of the container this process runs in."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        physical = 1 << 36
    try:
        return min(physical, int(system_text(_MEMORY_LIMIT)))
    except (OSError, ValueError):  # none, or "max"
        return physical


MAX_DECIDING_ELEMENTS: Final = 1024
"""A value with more elements than this is data: no build is made per value."""


@dataclass(frozen=True)
class Budgets:
    """Limits on a model. The defaults allow every model that this machine can run.

    Of the file: `file_bytes` of the model file (protobuf's own limit is 2 GiB). `nodes` after
    functions are expanded. `nesting` of graphs and functions. `functions`, `opsets`, `values`
    (inputs, outputs and initializers of one graph), `name_chars` of one name, `text_chars` of all
    layers' names, including those of the enclosing functions. `attribute_bytes` of one attribute
    that is not a tensor or graph. `rank`: axes of a tensor. `tensor_bytes` of one value of known
    shape, `total_bytes` of all such values together (reused memory counts each time).

    Of other files: `file_bytes` of each file that is read whole, `attribute_bytes` of a JSON text,
    `values` and `text_chars` of an archive's entries and of their directory, `rank` and
    `tensor_bytes` of an array, `total_bytes` of all arrays read from one archive, or of a table.

    Of compilation: `size_terms` of one size, a polynomial of free dimensions, with the terms in its
    operands; beyond it, elements of tensors are computed in the run, and shapes are refused.
    `folded_operations` of sums and products of constants; beyond it, they are
    computed in the run.

    Of a run: `run_bytes` allocated at once for one native call or one operator's result;
    `run_operations` of one kernel call, or of one call of a host operator that does far more work
    than it reads data; `loop_steps` of one loop. The machine's memory limits `tensor_bytes` and
    `run_bytes` too.
    """

    file_bytes: int = (1 << 31) - 1
    nodes: int = 500_000
    nesting: int = 32
    functions: int = 10_000
    opsets: int = 1_000
    values: int = 100_000
    name_chars: int = 1 << 17
    text_chars: int = 1 << 28
    attribute_bytes: int = 1 << 28
    rank: int = 32
    tensor_bytes: int = 1 << 36
    total_bytes: int = 1 << 42
    size_terms: int = 256
    folded_operations: int = 1 << 33
    run_bytes: int = 1 << 40
    run_operations: int = 1 << 62
    loop_steps: int = 10_000_000

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
                raise InputError(
                    "I268",
                    f"the budget {name} is {number!r:.80}",
                    hint="a budget is a whole number, 0 or more",
                )

    @classmethod
    def strict(cls) -> Budgets:
        """Returns budgets for untrusted files: seconds of work, and less than a gigabyte."""
        return cls(
            file_bytes=64 << 20,
            nodes=20_000,
            nesting=16,
            functions=1_000,
            opsets=100,
            values=10_000,
            name_chars=4096,
            text_chars=16 << 20,
            attribute_bytes=8 << 20,
            rank=16,
            tensor_bytes=128 << 20,
            total_bytes=2 << 30,
            size_terms=64,
            folded_operations=1 << 28,
            run_bytes=256 << 20,
            run_operations=1 << 33,
            loop_steps=10_000,
        )

    @property
    def bounds_work(self) -> bool:
        """Whether to count kernels' operations, which takes time."""
        return self.run_operations < Budgets.run_operations

    @property
    def memory_bytes(self) -> int:
        """The maximum number of bytes of one tensor on this machine."""
        return min(self.tensor_bytes, _physical_bytes())

    @property
    def allocated_bytes(self) -> int:
        """The maximum number of bytes that a run may allocate at once on this machine."""
        return min(self.run_bytes, _physical_bytes())


_default = Budgets()
# Memory that every machine has.
_SMALL_BYTES: Final = 1 << 16
DEFAULT_LOOP_STEPS: Final = ctypes.c_int64(_default.loop_steps)
"""`loop_steps` of the process's budgets, for native code."""
IN_FORCE: Final[ContextVar[Budgets | None]] = ContextVar("budgets", default=None)


def current() -> Budgets:
    """Returns the budgets in force in this thread, or those of the process."""
    return IN_FORCE.get() or _default


def set_default(budgets: Budgets) -> None:
    """Makes these the budgets of the process, used if no others are given."""
    global _default
    _default = budgets
    DEFAULT_LOOP_STEPS.value = budgets.loop_steps


def in_force(budgets: Budgets | None) -> AbstractContextManager[None]:
    """Applies these budgets inside the block; `None` changes nothing."""
    return nullcontext() if budgets is None else scoped(IN_FORCE, budgets)


def exceeded(
    kind: type[ClewError], code: str, what: str, asked: int | str, budget: str, limit: int
) -> ClewError:
    """Returns the error for something that exceeds a budget."""
    return kind(
        code,
        f"{what}: {asked}, but the budget {budget} allows {limit}",
        hint=Hint(
            f"if you trust it: Budgets({budget}=...), as limits= of clew.compile or budgets= of "
            "clew.load",
            cli=f"if you trust it: clew --budget {budget}=... COMMAND",
        ),
    )


def check_run_bytes(what: str, size_bytes: int) -> None:
    """Checks the size of an allocation before a run makes it.

    Errors: I265 if it exceeds the budget or the machine's memory.
    """
    budgets = current()
    if size_bytes <= _SMALL_BYTES and size_bytes <= budgets.run_bytes:
        return
    if size_bytes <= budgets.allocated_bytes:
        return
    if size_bytes > budgets.run_bytes:
        what = f"bytes of {what}"
        raise exceeded(RunError, "I265", what, size_bytes, "run_bytes", budgets.run_bytes)
    raise RunError(
        "I265",
        f"{what} would have {size_bytes} bytes, but this machine has {budgets.allocated_bytes}",
        hint="use inputs that give a smaller result",
    )


def out_of_memory(error: BaseException) -> RunError:
    """Returns the error (I267) of a run for which the machine's memory does not suffice."""
    return RunError(
        "I267",
        f"the run needs more memory than is available: {error}",
        hint="run with smaller inputs, or fewer calls at once",
    )


def check_loop_steps(steps: int) -> None:
    """Checks how many iterations a loop has taken.

    Errors: I266 if they exceed the budget.
    """
    most = current().loop_steps
    if steps > most:
        raise too_many_iterations(most)


def too_many_iterations(most: int) -> ClewError:
    """Returns the error (I266) of a loop that takes more iterations than its budget allows."""
    found = f"more than {most}"
    return exceeded(RunError, "I266", "iterations of a loop", found, "loop_steps", most)


def check_run_operations(what: str, count: int) -> None:
    """Checks the number of operations of an operator's call, done and about to be done.

    Errors: I269 if they exceed the budget.
    """
    limit = current().run_operations
    if count > limit:
        raise exceeded(RunError, "I269", f"operations of {what}", count, "run_operations", limit)


def check_kernel_operations(what: str, count: int) -> None:
    """Checks the number of operations that one call of a kernel may take.

    Errors: C141 if they exceed the budget.
    """
    limit = current().run_operations
    if count > limit:
        what = f"operations of {what}"
        raise exceeded(CompileError, "C141", what, count, "run_operations", limit)


def read_budgets(given: Iterable[str]) -> Budgets:
    """Returns the budgets given by texts such as `nodes=1000`, `file_bytes=64m` or `strict`.

    Errors: I268 for an unknown name or an invalid number.
    """
    budgets = _default
    for text in given:
        name, _, number = text.partition("=")
        if text == "strict":
            budgets = Budgets.strict()
            continue
        found = re.fullmatch(_VALUE, number.lower())
        if name not in _NAMES or found is None:
            raise InputError(
                "I268",
                f"{text!r} is not a budget",
                hint=f"strict, or NAME=NUMBER, as in file_bytes=64m; names: {', '.join(_NAMES)}",
            )
        value = int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2]]
        budgets = replace(budgets, **{name: value})
    return budgets


_NAMES: Final = tuple(f.name for f in fields(Budgets))
