"""From a module to a program of core ATen operators, and of those that clew runs better whole."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from keyword import iskeyword
from typing import Any, Final

import torch
import torch.ao.quantization.fx._decomposed  # operators that files may call
import torch.fx.graph
from torch.export import ExportedProgram
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from clew.frontends.torch.decompositions import decompositions
from clew.frontends.torch.dtypes import check_device, check_layout
from clew.frontends.torch.forms import plain
from clew.frontends.torch.free_sizes import FreeSizes, debug_names
from clew.frontends.torch.layer import EVAL
from clew.frontends.torch.logs import kept_logs
from clew.frontends.torch.places import line_of_error
from clew.frontends.torch.prims import without_view_prims
from clew.frontends.torch.recurrent_types import free_time
from clew.frontends.torch.small_sizes import SmallSizes
from clew.frontends.torch.writes import free_writes
from clew.support.errors import PASSED_ON, ClewWarning, InputError, ModelError, locate
from clew.support.locks import Lock


def program_of(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Returns a module as a program of operators that have converters.

    Errors: I410 (not a module), M050 (torch cannot export it).
    """
    return exported(model, args, kwargs, dynamic_shapes).decomposed()


@dataclass(frozen=True)
class Exported:
    """A program of torch. `whole`: whether it was traced for all sizes: torch assumes by default
    that free sizes are at least 2, and does not record which of its decisions depend on that.
    If the program lacks the names of sizes, `names` has them by their sources, and `least` the
    user's lower bounds by name. `small` compares the program with those of other examples.
    """

    program: ExportedProgram
    whole: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    small: SmallSizes | None = None

    def decomposed(self) -> ExportedProgram:
        """Returns the program in operators that have converters. Errors: M050."""
        with _all_sizes() if self.whole else contextlib.nullcontext():
            return decomposed(self.program)


def exported(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> Exported:
    """Returns the program that torch exports for a module. A program is returned unchanged.

    Errors: I410 (not a module), M050 (torch cannot export it).
    """
    if isinstance(model, ExportedProgram):
        return Exported(model)
    if isinstance(model, torch.jit.ScriptModule):
        return Exported(_of_script(model, args, kwargs, dynamic_shapes))
    if isinstance(model, torch.nn.Module):
        return _exported(model, args, kwargs, dynamic_shapes)
    raise InputError(
        "I410",
        f"from_torch takes a module or an exported program, got {type(model).__name__}",
        hint="wrap a function in a torch.nn.Module whose forward calls it",
    )


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """Returns a program of operators that have converters. Errors: M050."""
    by_torch = _by_torch("decompose the exported program", "program.run_decompositions()")
    with by_torch, kept_logs(), without_view_prims(program):
        return _decomposed(program)


_OF_BRANCHES: Final = (
    "the code depends on a tensor's values: use torch.where or torch.cond, or "
    "torch.compile(model, backend='clew'), which runs it in eager"
)

_lock: Final = Lock()


@contextlib.contextmanager
def _by_torch(what: str, call: str) -> Iterator[None]:
    """A context for a step of torch's, at free lengths and without its warnings.

    Errors: M050 for any error in it, with the user's line if the error has one.
    """
    try:
        # torch's tables are the process's.
        with _lock, warnings.catch_warnings(), free_time(), free_writes(), any_names():
            warnings.simplefilter("ignore")
            yield
    except PASSED_ON:
        raise
    except BaseException as error:  # of any type: it comes from torch, or from the user's code
        text = f"{type(error).__name__}: {error}".strip()
        hint = f"{call} must work: see its message above"
        if isinstance(error, GuardOnDataDependentSymNode):
            text, hint = text.partition("\n\n")[0], _OF_BRANCHES  # advice on torch's logs follows
        failed = ModelError("M050", f"torch cannot {what}: {text}", hint=hint)
        failed.position = line_of_error(error)
        raise failed from error


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Returns a program of core ATen operators.

    During decomposition, dicts replace arguments and results that are objects of registered
    classes: torch would construct these objects while it traces, and tensors that the constructors
    make would be constants without a value. The program's guards are left out, too: as code that
    is traced (`n == 1 or max(0, n - m) == k`), they would give narrower guards.
    """
    signature = program.module_call_graph[0].signature
    if signature is None:
        return program.run_decompositions(decompositions())
    given, guards = (signature.in_spec, signature.out_spec), program._guards_code
    try:
        signature.in_spec, signature.out_spec = map(plain, given)
        program._guards_code = []
        found = program.run_decompositions(decompositions())
    finally:
        signature.in_spec, signature.out_spec = given
        program._guards_code = guards
    kept = found.module_call_graph[0].signature
    assert kept is not None
    kept.in_spec, kept.out_spec = given
    return found


def _exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> Exported:
    if _trains(model):
        text = "the module is in training mode: its dropout is random, as in eager"
        warnings.warn(ClewWarning("I411", text, hint=EVAL), stacklevel=4)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        with locate(layer=name.rpartition(".")[0]):
            _check_quantized(tensor, f"the tensor {name!r}")
            check_device(tensor, f"the tensor {name!r}")
    _register_classes()
    for path, leaf in pytree.tree_leaves_with_path((tuple(args), dict(kwargs or {}))):
        if isinstance(leaf, torch.Tensor):
            _check_quantized(leaf, f"the argument {_argument(path)}")

    own_kwargs: Mapping[str, Any] = dict(kwargs or {})

    def export(
        shapes: Any, args: Sequence[Any] = args, kwargs: Mapping[str, Any] = own_kwargs
    ) -> ExportedProgram:
        with _by_torch("export the module", "torch.export.export(model, args)"), torch.no_grad():
            return torch.export.export(
                model, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False
            )

    free = FreeSizes(dynamic_shapes)
    if not free.names:
        return Exported(export(dynamic_shapes))

    def whole(program: ExportedProgram, **names: Any) -> Exported:
        def again(args: Sequence[Any], kwargs: Mapping[str, Any], shapes: Any) -> ExportedProgram:
            with _all_sizes():
                return export(shapes, args, kwargs)

        small = SmallSizes(program, args, own_kwargs, again)
        return Exported(program, whole=True, small=small, **names)

    with contextlib.suppress(ModelError), _all_sizes():
        return whole(export(dynamic_shapes))
    # torch refuses names whose sizes it limits even where the limits are only choices of its own
    # code (`guards.py`). Without names, it goes on and records the limits.
    plain = export(dynamic_shapes)
    if free.can_be_hints:
        with contextlib.suppress(ModelError), _all_sizes():
            program = export(free.hints())
            return whole(program, names=debug_names(plain), least=free.least)
    return Exported(plain)


def _of_script(
    model: torch.jit.ScriptModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Returns the program of a TorchScript module, which torch converts for the sizes of the
    example inputs.

    Errors: I410 for free sizes, M050.
    """
    if dynamic_shapes:
        raise InputError(
            "I410",
            "torch converts TorchScript for fixed sizes only",
            hint="leave dynamic_shapes out, or give the torch.nn.Module that it was made from",
        )
    with _by_torch("convert the TorchScript module", "TS2EPConverter(model, args).convert()"):
        from torch._export.converter import TS2EPConverter  # noqa: PLC0415 - seldom needed

        with torch.no_grad(), kept_logs():
            program: ExportedProgram = TS2EPConverter(
                model, tuple(args), dict(kwargs) if kwargs else None
            ).convert()
            return program


def _check_quantized(tensor: torch.Tensor, what: str) -> None:
    """Checks that a tensor is not quantized: torch's own error names none. Errors: U062."""
    if tensor.is_quantized:
        check_layout(tensor, what)


def _argument(path: Sequence[Any]) -> str:
    """Returns the text for the place of a leaf in arguments and keyword arguments."""
    keywords, *inner = path
    first = f"kwargs{inner[0]}" if keywords.idx else f"args{inner[0]}"
    return f"{first}{pytree.keystr(tuple(inner[1:]))}"


def _all_sizes() -> contextlib.AbstractContextManager[Any]:
    """A context in which torch traces for all sizes, 0 and 1 included."""
    found: contextlib.AbstractContextManager[Any] = _config.patch(backed_size_oblivious=True)
    return found


def _register_classes() -> None:
    """Makes the imported libraries register their classes with torch (`torch.utils._pytree`)."""
    for library, register in REGISTERING.items():
        if library in sys.modules:
            with contextlib.suppress(ImportError, AttributeError):  # of another version
                register()


def _register_caches() -> None:
    from transformers.integrations import executorch  # noqa: PLC0415 - optional

    executorch.register_dynamic_cache_export_support()


REGISTERING: Final[dict[str, Callable[[], None]]] = {"transformers.cache_utils": _register_caches}
"""By library, the function that registers its classes of arguments and results."""


def _trains(model: torch.nn.Module) -> bool:
    """Whether a module has dropout or batch norms in training mode."""
    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
    return any(m.training and isinstance(m, kinds) for m in model.modules())


@contextmanager
def any_names() -> Iterator[None]:
    """A context in which torch's code reads attributes of any name."""
    before = torch.fx.graph._format_target
    torch.fx.graph._format_target = _attribute
    try:
        yield
    finally:
        torch.fx.graph._format_target = before


def _attribute(base: str, target: str) -> str:
    """Returns the code for an attribute of `base`, by its path."""
    for name in target.split("."):
        plain = name.isidentifier() and not iskeyword(name)
        base = f"{base}.{name}" if plain else f"getattr({base}, {name!r})"
    return base
