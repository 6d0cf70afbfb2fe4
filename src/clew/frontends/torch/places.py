"""Places: the module and the line of user code that an operator of an FX graph comes from."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import sympy
import torch
from torch import fx

from clew.frontends.torch.numbers import is_arithmetic
from clew.frontends.torch.registry import name_of
from clew.trace.places import CodePlace

_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_ROOT: Final = re.compile(r"^L\['\w+'\]\.?")
_INDEX: Final = re.compile(r"""\[['"]?([^'"\]]+)['"]?\]""")
# Code that is not the user's; `<eval_with_key>` is FX's own.
_NOT_OWN: Final = (
    f"{Path(torch.__file__).parent}/", "torch/", "<eval_with_key>", f"{Path(__file__).parent}/",
)  # fmt: skip
_PYTHON: Final = f"{sysconfig.get_path('stdlib')}/"
_SYMPY: Final = f"{Path(sympy.__file__).parent}/"
_NONE: Final = "_empty_nn_module_stack_from_metadata_hook"
# Calls that only check: sizes and values were checked when the program was exported.
_CHECKS: Final = (
    "_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range",
    "sym_constrain_range_for_size", "_functional_assert_async", "_functional_assert_scalar",
    "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size",
    "_make_dep_token",
)  # fmt: skip


def is_layer(node: fx.Node) -> bool:
    """Whether a node is a layer: a call that computes tensors. Reading a size, picking a
    result, arithmetic of sizes and checks are none.
    """
    called = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
    return (
        node.op == "call_function"
        and isinstance(node.target, called)
        and not is_arithmetic(node.target)
        and not is_check(node)
    )


def is_check(node: fx.Node) -> bool:
    """Whether a node is a call that only checks sizes or values."""
    target: Any = node.target
    name = getattr(target, "__name__", "").partition(".")[0]
    return name in _CHECKS or target is torch._check


def module_of(node: fx.Node) -> tuple[str, str]:
    """Returns the path and the class of the module whose `forward` made a node; the path of the
    whole model is empty.
    """
    stack = [
        (key, entry)
        for key, entry in (node.meta.get("nn_module_stack") or {}).items()
        if entry[0] != _NONE
    ]
    if not stack:
        return "", ""
    key, (path, kind) = stack[-1]
    path = _INDEX.sub(r".\1", _ROOT.sub("", path)).replace("._modules", "").strip(".")
    # A module that is called again has the number of the call.
    again = key.rpartition("@")[2] if "@" in key.rpartition(".")[2] else ""
    kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return (f"{path}@{again}" if again and path else path), kind


def op_name(node: fx.Node) -> str:
    """Returns the name of a node's operator, without its overload and leading underscores."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return name_of(target).rpartition(".")[0].lstrip("_")
    return str(getattr(target, "__name__", target))


def layer_names(layers: Iterable[fx.Node], prefix: str = "") -> dict[fx.Node, str]:
    """Returns names for layers. The only layer of a module that calls no other module has the
    module's path, as in `encoder.layer.3.attention.self.query`. Others have the operator's name
    behind it: `encoder.layer.3.attention.self/softmax`, and a number if it is not the first.
    """
    paths = {node: module_of(node)[0] for node in layers}
    counts = Counter(paths.values())
    outer = {path[:n] for path in counts for n, letter in enumerate(path) if letter == "."}
    used: Counter[str] = Counter()
    names: dict[fx.Node, str] = {}
    for node, path in paths.items():
        alone = path and counts[path] == 1 and path not in outer
        name = path if alone else f"{path}/{op_name(node)}".lstrip("/")
        number = used[name]
        used[name] += 1
        names[node] = prefix + (f"{name}_{number}" if number else name)
    return names


def place_of(node: fx.Node, name: str) -> CodePlace:
    """Returns the place of a layer: the innermost line of code that is not torch's own."""
    path, kind = module_of(node)
    file, line, code = line_of(node)
    return CodePlace(name, path, kind, file, line, code)


def line_of_error(error: BaseException) -> str:
    """Returns the innermost line of code in an error's traceback that is not torch's own; "" if
    there is none.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename)]
    return shown_line(own[-1].filename, own[-1].lineno or 0, own[-1].line or "") if own else ""


def is_own(file: str) -> bool:
    """Whether a file is the user's or a library's, not one of torch, sympy or Python."""
    if file.startswith(_PYTHON) and "site-packages" not in file:
        return False
    return not file.startswith((*_NOT_OWN, _SYMPY, "<"))


def shown_line(file: str, line: int, code: str) -> str:
    """Returns a line of code as errors show it."""
    return f"{file}:{line}" + (f"  {code}" if code else "")


def line_of(node: Any) -> tuple[str, int, str]:
    """Returns the user's file, the line's number and its text; "" and 0 if unknown."""
    trace = str(node.meta.get("stack_trace") or "")
    frames = list(_FRAME.finditer(trace))
    own = [f for f in frames if not f["file"].startswith(_NOT_OWN)]
    if not own:
        return "", 0, ""
    frame = own[-1]
    rest = trace[frame.end() :].lstrip("\n")
    text = rest.split("\n", 1)[0].strip()
    return frame["file"], int(frame["line"]), "" if text.startswith("File ") else text
