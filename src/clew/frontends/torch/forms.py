"""Converts the pytrees of torch calls (`torch.utils._pytree`) to plain data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from clew.support.call_form import CallForm, Tree, objects_flattened_by

Path: TypeAlias = "tuple[str, ...]"
"""The place of a leaf in arguments: the parameter's name, then keys, positions and attributes."""
_PLAIN: Final = (tuple, list, dict, OrderedDict)


def form_of(
    program: ExportedProgram, inputs: Sequence[Tree], outputs: Sequence[Tree]
) -> CallForm | None:
    """Returns the form of a program's calls; None if the program does not define it. `inputs` and
    `outputs` are the trees of the leaves, in order.
    """
    spec = program.call_spec.in_spec
    if spec is None or program.call_spec.out_spec is None:
        return None
    leaves = iter(inputs)
    parameters = list(_parameters(program))
    names = tuple(name for name, _ in parameters)
    trees = tuple(tree_of(child, leaves) for _, child in parameters)
    return CallForm(names, trees, tree_of(program.call_spec.out_spec, iter(outputs)))


def _parameters(program: ExportedProgram) -> Iterator[tuple[str, pytree.TreeSpec]]:
    """Yields the names of a program's parameters, and the trees of their values."""
    positional, named = program.call_spec.in_spec.children()
    signature = program.module_call_graph[0].signature
    known = list(getattr(signature, "forward_arg_names", None) or ())
    for number, child in enumerate(positional.children()):
        yield (known[number] if number < len(known) else f"arg{number}"), child
    yield from zip(map(str, named.context or ()), named.children(), strict=True)


def leaf_paths(program: ExportedProgram) -> Iterator[Path]:
    """Yields the paths of the leaves of a program's arguments, in order."""
    if program.call_spec.in_spec is not None:
        for name, spec in _parameters(program):
            yield from _paths((name,), plain(spec))


def _paths(path: Path, spec: pytree.TreeSpec) -> Iterator[Path]:
    if spec.is_leaf():
        yield path
        return
    keys = spec.context if spec.type in (dict, OrderedDict) else range(spec.num_children)
    for key, child in zip(keys, spec.children(), strict=True):
        yield from _paths((*path, str(key)), child)


def tree_of(spec: pytree.TreeSpec, leaves: Iterator[Tree]) -> Tree:
    """Returns a tree of torch with leaves from an iterator, in order."""
    if spec.is_leaf():
        return next(leaves)
    children = tuple(tree_of(child, leaves) for child in spec.children())
    if spec.type in (tuple, list):
        return (spec.type.__name__, children)
    if spec.type in (dict, OrderedDict):
        return ("dict", tuple(map(_key, spec.context)), children)
    return ("object", spec.type.__name__, _keys(spec, len(children)), children)


def plain(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Returns a tree of torch with dicts, or tuples, in place of objects of registered classes."""
    if spec.is_leaf():
        return spec
    children = [plain(child) for child in spec.children()]
    if spec.type in _PLAIN:
        return pytree.TreeSpec(spec.type, spec.context, children)
    keys = _keys(spec, len(children))
    if keys:
        return pytree.TreeSpec(dict, list(keys), children)
    return pytree.TreeSpec(tuple, None, children)


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int, float, bool)) else str(key)


def _keys(spec: pytree.TreeSpec, count: int) -> tuple[Any, ...]:
    """Returns the names of an object's parts: the fields of a named tuple, or the keys that its
    context holds.
    """
    fields = getattr(spec.type, "_fields", None)
    if fields is not None:
        return tuple(fields)
    context = spec.context
    for found in (context, *(context if isinstance(context, (list, tuple)) else ())):
        names = isinstance(found, (list, tuple)) and len(found) == count
        if names and all(isinstance(key, (str, int)) for key in found):
            return tuple(map(_key, found))
    return ()


def _leaves(value: Any) -> list[Any]:
    """Returns the parts of an object that torch knows, one level deep."""
    entry = pytree.SUPPORTED_NODES.get(type(value))
    return [] if entry is None else list(entry.flatten_fn(value)[0])


objects_flattened_by(_leaves)
