"""From a module to a program of core ATen operators, and of those that clew runs better whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.export import ExportedProgram

from clew.frontends.torch.recurrent_types import free_time
from clew.frontends.torch.registry import find
from clew.support.errors import InputError, ModelError

aten: Final = torch.ops.aten
Table: TypeAlias = "dict[torch._ops.OperatorBase, Callable[..., Any]]"
# Operators that decompositions would take apart although clew has them whole.
WHOLE: Final = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.layer_norm.default,
    aten.group_norm.default,
    aten.rms_norm.default,
    aten.instance_norm.default,
    aten.silu.default,
    aten.mish.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.softplus.default,
    aten.prelu.default,
    aten.selu.default,
    aten.celu.default,
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.lstm.input,
    aten.gru.input,
    aten.rnn_tanh.input,
    aten.rnn_relu.input,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_trilinear3d.vec,
    aten.upsample_bicubic2d.vec,
    aten._upsample_bilinear2d_aa.vec,
    aten._upsample_bicubic2d_aa.vec,
    aten.stack.default,
    aten.unbind.int,
    aten.logsumexp.default,
    aten.tile.default,
    aten.triu.default,
    aten.tril.default,
)


def decompositions() -> Table:
    """Returns the decompositions for programs that clew imports: torch's default ones without those
    of `WHOLE` and of operators with a user's clew operator.
    """
    table: Table = dict(torch.export.default_decompositions())
    for op in WHOLE:
        if find(op) is not None:
            table.pop(op, None)
    return table


def program_of(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Returns a module as a program of operators that have converters.

    Errors: I410 (not a module), M050 (torch cannot export it).
    """
    if isinstance(model, ExportedProgram):
        program = model
    elif isinstance(model, torch.nn.Module):
        program = _exported(model, args, kwargs, dynamic_shapes)
    else:
        raise InputError(
            "I410",
            f"from_torch takes a module or an exported program, got {type(model).__name__}",
            hint="wrap a function in a torch.nn.Module whose forward calls it",
        )
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


def _exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    if model.training:
        raise InputError(
            "I411",
            "the module is in training mode",
            hint="call model.eval(): clew compiles inference",
        )
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
