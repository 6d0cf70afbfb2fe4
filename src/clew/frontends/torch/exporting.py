"""From a module to a program of core ATen operators, and of those that clew runs better whole."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from clew.frontends.torch.decompositions import decompositions
from clew.frontends.torch.layer import EVAL
from clew.frontends.torch.recurrent_types import free_time
from clew.support.errors import ClewWarning, InputError, ModelError


def program_of(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Returns a module as a program of operators that have converters.

    Errors: I410 (not a module), M050 (torch cannot export it).
    """
    return decomposed(exported(model, args, kwargs, dynamic_shapes))


def exported(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Returns a module as torch exports it; a program as it is.

    Errors: I410 (not a module), M050 (torch cannot export it).
    """
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, torch.nn.Module):
        return _exported(model, args, kwargs, dynamic_shapes)
    raise InputError(
        "I410",
        f"from_torch takes a module or an exported program, got {type(model).__name__}",
        hint="wrap a function in a torch.nn.Module whose forward calls it",
    )


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """Returns a program of operators that have converters. Errors: M050."""
    try:
        with warnings.catch_warnings(), free_time():
            warnings.simplefilter("ignore")
            return program.run_decompositions(decompositions())
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # of any type: torch raises it
        text = f"{type(error).__name__}: {error}".strip()
        raise ModelError(
            "M050",
            f"torch cannot decompose the exported program: {text}",
            hint="program.run_decompositions() must work: see its message above",
        ) from error


def saved_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Returns a program that `torch.export.save` wrote. Errors: M052."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # of any type: it comes from torch
        raise ModelError(
            "M052",
            f"torch cannot read {os.fspath(path)!r}: {type(error).__name__}: {error}",
            hint="write it with torch.export.save, by the same version of torch",
        ) from error


def _exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    if _trains(model):
        text = "the module is in training mode: its dropout is random, as in eager"
        warnings.warn(ClewWarning("I411", text, hint=EVAL), stacklevel=4)
    try:
        with torch.no_grad(), warnings.catch_warnings(), free_time():
            warnings.simplefilter("ignore")
            return torch.export.export(
                model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # of any type: it comes from torch, or from the user's code
        text = f"{type(error).__name__}: {error}".strip()
        raise ModelError(
            "M050",
            f"torch cannot export the module: {text}",
            hint="torch.export.export(model, args) must work: see its message above",
        ) from error


def _trains(model: torch.nn.Module) -> bool:
    """Whether a module has dropout or batch norms in training mode."""
    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
    return any(m.training and isinstance(m, kinds) for m in model.modules())
