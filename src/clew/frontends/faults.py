"""Codes for Python errors of the converters of file formats."""

from __future__ import annotations

from typing import Final

from clew.frontends.builder import Fault
from clew.frontends.names import display
from clew.support.errors import ClewError, CompileError, ModelError


def _too_large(op: str, error: Exception) -> ClewError:
    """Code: M032."""
    return ModelError(
        "M032",
        f"{display(op)} needs more memory than available: {display(str(error))}",
        hint="read the model on a machine with more memory, or with lower budgets",
    )


def _senseless(op: str, error: Exception) -> ClewError:
    """Code: M031, for sizes of NaN, for example."""
    return ModelError(
        "M031",
        f"{display(op)} is invalid for these values: {display(str(error))}",
        hint="the model is invalid: export it again",
    )


def _unforeseen(op: str, error: Exception) -> ClewError:
    """Code: C082."""
    return CompileError(
        "C082",
        f"{display(op)} could not be imported: {type(error).__name__}: {display(str(error))}",
        hint="this is a bug in clew; fixed input shapes (inputs={...}) may avoid it",
    )


FAULTS: Final = (
    Fault((MemoryError,), _too_large),
    Fault((ArithmeticError, ValueError, IndexError), _senseless),
    Fault(
        (TypeError, AttributeError, LookupError, AssertionError, NotImplementedError), _unforeseen
    ),
)
