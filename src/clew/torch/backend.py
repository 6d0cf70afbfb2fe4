"""The `torch.compile` backend: compiles FX graphs to native programs, after AOT decomposition."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any, Final

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch.utils._python_dispatch import (
    _disable_current_modes,
    is_traceable_wrapper_subclass,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

from clew.backends.compile_options import PLACES, CompileOptions
from clew.frontends.torch.decompositions import WHOLE, decompositions
from clew.frontends.torch.omitted import Undecomposed
from clew.frontends.torch.registry import find
from clew.frontends.torch.result_views import without_views
from clew.machine.target import target_of
from clew.runtime.threads import thread_count
from clew.support.errors import ClewWarning, InputError
from clew.support.settings import requested_threads
from clew.torch.parts import Given, run_by_parts
from clew.torch.programs import TorchProgram, current
from clew.torch.weights import can_hold

_OF_FILES: Final = ("inputs", "backends", "place", "fallback")
_OPTIONS: Final = tuple(f.name for f in fields(CompileOptions) if f.name not in _OF_FILES)
_OF_GROUPS: Final = frozenset(name for name, place in PLACES.items() if place.group)
_told: Final[set[str]] = set()


def clew_backend(module: fx.GraphModule, args: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """Returns a graph of torch as a function: `torch.compile(model, backend="clew")`.

    `options` are those of `clew.compile`: `threads`, `precision`, `tuned` and others. Calls that
    clew cannot run stay in eager (`clew.torch.last().left`). Graphs whose inputs need gradients
    stay in eager as a whole.

    Errors: I413 (options), and those of `clew.compile`.
    """
    options = _options(given)
    if torch.is_grad_enabled() and any(getattr(a, "requires_grad", False) for a in args):
        _tell(
            "I412",
            "clew compiles inference: graphs whose inputs need gradients run in eager",
            "call the model in `with torch.no_grad():` or `torch.inference_mode()`",
        )
        forward: Callable[..., Any] = module.forward
        return forward
    _restart_without_floats()
    names, static = inputs_of(module)
    programs = current()
    plain: list[TorchProgram] = []

    def compiled(graph: fx.GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
        given = _given(graph, args, names, static, Undecomposed(module, graph))
        with _disable_current_modes():  # weights are real tensors, not fake ones
            made = run_by_parts(graph, given, options, programs)
        if isinstance(made, TorchProgram) and _is_plain(graph):
            plain.append(made)
        return made

    compiled_with = aot_autograd(
        fw_compiler=compiled,
        inference_compiler=compiled,
        decompositions=without_views(decompositions()),
    )
    # Classes such as nested tensors take calls apart themselves.
    apart = any(map(is_traceable_wrapper_subclass, args))
    with nullcontext() if apart else _whole():
        run: Callable[..., Any] = compiled_with(module, list(args))
    return plain[0] if plain else run


def _restart_without_floats() -> None:
    """Has Dynamo trace again at once if all float inputs of its graph turned out to be constants,
    such as the epsilons of normalizations under `dynamic=True`. AOT would have it do so in the end,
    after it traced the graph in vain (`tensorify_python_scalars`).
    """
    facts = TracingContext.try_get()
    sizes = None if facts is None or facts.fake_mode is None else facts.fake_mode.shape_env
    if sizes is None:
        return
    floats = [s for s in sizes.backed_var_to_val if symbol_is_type(s, SymT.FLOAT)]
    new = [s for s in floats if not TensorifyState.should_specialize(str(s))]
    if new and all(getattr(sizes.replacements.get(s), "is_number", False) for s in floats):
        for symbol in new:
            TensorifyState.specialize(str(symbol))
        raise TensorifyScalarRestartAnalysis


def _is_plain(graph: fx.GraphModule) -> bool:
    """Whether a graph after AOT takes the arguments of the one before in order, changes none, and
    shares memory with none: then it may be called in its place.
    """
    nodes = graph.graph.find_nodes(op="placeholder")
    order = [getattr(n.meta.get("desc"), "idx", None) for n in nodes]
    facts = TracingContext.get().fw_metadata
    fresh = (OutputType.non_alias, OutputType.unsafe_view_alias)
    return (
        order == list(range(len(order)))
        and not facts.tokens
        and not any(i.mutates_data or i.mutates_metadata for i in facts.input_info)
        and all(o.output_type in fresh for o in facts.output_info)
        and facts.grad_enabled_mutation is None
    )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options for `clew.compile`; the number of threads is torch's unless given.

    Errors: I413 for unknown names, and those of `clew.compile` for wrong values, which would
    otherwise leave every call in eager.
    """
    found = dict(given.pop("options", None) or {})
    given.pop("mode", None)
    found.update(given)
    unknown = [name for name in found if name not in _OPTIONS and name not in _OF_GROUPS]
    if unknown:
        raise InputError(
            "I413",
            f"the backend has no option {unknown[0]!r}",
            hint=f"it takes {', '.join(_OPTIONS)}",
        )
    found.setdefault("threads", requested_threads() or torch.get_num_threads())
    options = CompileOptions.of(found)
    target_of(options.target)
    thread_count(options.threads)
    return found


def _given(
    graph: fx.GraphModule,
    args: Sequence[Any],
    names: Sequence[str],
    static: Collection[int],
    earlier: Undecomposed,
) -> Given:
    """Returns the arguments of a graph after AOT, each of which is one of those before it, in
    another order.
    """
    positions = [
        node.meta["desc"].idx if isinstance(node.meta.get("desc"), PlainAOTInput) else None
        for node in graph.graph.find_nodes(op="placeholder")
    ]
    facts = TracingContext.get().fw_metadata
    changed = {n for n, info in enumerate(facts.input_info) if info.mutates_data}
    taken = [None if p is None else args[p] for p in positions]
    shown = [f"input{n}" if p is None else names[p] for n, p in enumerate(positions)]
    frozen = {
        n
        for n, p in enumerate(positions)
        if p in static and n not in changed and can_hold(taken[n])
    }
    return Given(taken, shown, frozen, earlier)


@contextmanager
def _whole() -> Iterator[None]:
    """Keeps composite operators whole that clew has, while a graph is decomposed."""
    try:
        from torch._export.utils import _special_op_to_preserve_cia  # noqa: PLC0415
        from torch.export.exported_program import (  # noqa: PLC0415
            _override_composite_implicit_decomp,
        )
    except ImportError:  # another version of torch: they are decomposed
        with nullcontext():
            yield
        return
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    kept = {
        op: _special_op_to_preserve_cia
        for op in WHOLE
        if find(op) is not None and op.has_kernel_for_dispatch_key(composite)
    }
    with _override_composite_implicit_decomp(kept):
        yield


def _tell(code: str, text: str, hint: str) -> None:
    """Warns once in a process."""
    if code not in _told:
        _told.add(code)
        warnings.warn(ClewWarning(code, text, hint=hint), stacklevel=3)


_STEP: Final = re.compile(r"""\[['"]?([^'"\]]+)['"]?\]|\.(\w+)|^(\w+)""")
_HIDDEN: Final = ("L", "G", "self", "_modules", "_parameters", "_buffers")


def inputs_of(module: fx.GraphModule) -> tuple[list[str], set[int]]:
    """Returns the names of a graph's inputs, each once, and the positions of parameters and
    buffers.
    """
    names: list[str] = []
    weights: set[int] = set()
    used: dict[str, int] = {}
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        facts = node.meta.get("tensor_dict") or {}
        if facts.get("_dynamo_static_input_type") is not None:
            weights.add(position)
        name = _path(node)
        number = used[name] = used.get(name, -1) + 1
        names.append(f"{name}_{number}" if number else name)
    return names, weights


def _path(node: fx.Node) -> str:
    """Returns a path such as `encoder.layer.0.weight` for `L['self']._modules['encoder']...`."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return str(node.name)
    text = source.name if isinstance(source.name, str) else source.name()
    parts = ["".join(match.groups("")) for match in _STEP.finditer(text)]
    shown = [p for p in parts if p not in _HIDDEN]
    return ".".join(shown) or str(node.name)
