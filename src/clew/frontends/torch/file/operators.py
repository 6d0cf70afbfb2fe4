"""The operators that a file may call: those of torch that compute tensors, sizes and numbers.

torch resolves a name in a file as attributes of `torch`, `math` and `operator`, so that it could be
any function of any module that these have imported, and calls it while it decomposes the program.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import torch
from torch._export.serde.serialize import _SYM_OPS

from clew.frontends.torch.callbacks import called_back
from clew.frontends.torch.registry import find

_OPERATOR: Final = re.compile(r"torch\.ops\.([A-Za-z]\w*)\.([A-Za-z_]\w*)\.(\w+)", re.ASCII)
_OF_GRAPHS: Final = re.compile(r"torch\.ops\.higher_order\.([A-Za-z]\w*)", re.ASCII)
# Libraries of torch itself whose operators are functions of tensors.
_LIBRARIES: Final = ("aten", "prims", "quantized_decomposed")
_ARITHMETIC: Final = frozenset(f"{f.__module__}.{f.__name__}" for f in _SYM_OPS)
# Operators of a higher order that only run graphs of the file itself.
_RUN_GRAPHS: Final = frozenset(
    ("cond", "while_loop", "scan", "associative_scan", "map", "map_impl", "wrap", "invoke_subgraph",
     "wrap_with_set_grad_enabled", "wrap_with_autocast", "hints_wrapper", "strict_mode",
     "tag_activation_checkpoint", "flex_attention")
)  # fmt: skip
_CHECKS: Final = ("_assert_", "sym_constrain_range", "_linalg_check_errors")


class ForeignError(Exception):
    """An operator that only a trusted file may call."""


def check_operator(name: str) -> None:
    """Checks that a file may call an operator.

    Errors: ValueError for one that this version of torch lacks; ForeignError.
    """
    if name in _ARITHMETIC:
        return
    of_graphs = _OF_GRAPHS.fullmatch(name)
    if of_graphs is not None:
        if of_graphs[1] in _RUN_GRAPHS and hasattr(torch.ops.higher_order, of_graphs[1]):
            return
        raise ForeignError(name)
    parts = _OPERATOR.fullmatch(name)
    if parts is None:
        raise ForeignError(name)
    library, operator, overload = parts.groups()
    found: Any = getattr(getattr(getattr(torch.ops, library), operator, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"torch has no operator {name}: import the library that registers it")
    if not _computes(found) if library in _LIBRARIES else find(found) in (None, called_back):
        raise ForeignError(name)


@functools.cache
def _computes(found: torch._ops.OpOverload) -> bool:
    """Whether an operator of torch has no effect besides its results: it neither opens files nor
    changes settings.
    """
    name = found._schema.name.partition("::")[2]
    if not torch._C._dispatch_has_kernel(found.name()):  # of TorchScript alone
        return False
    if any(argument.name == "filename" for argument in found._schema.arguments):
        return False
    computed = any(_is_value(str(result.type)) for result in found._schema.returns)
    return computed or name.startswith(_CHECKS)


def _is_value(kind: str) -> bool:
    return "Tensor" in kind or kind in ("SymInt", "SymFloat", "SymBool", "number", "int", "bool",
                                        "float", "Scalar")  # fmt: skip
