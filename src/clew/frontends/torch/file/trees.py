"""The trees of a program's arguments and results (`torch.utils._pytree`) in a file.

torch imports modules that such a tree names, and calls functions that read what classes add to it.
Here a class is looked up among the registered ones, or replaced by an empty one of its name, and
what it adds is plain data: clew needs only the names of its parts.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, Final

from torch.utils import _pytree as pytree

from clew.support.budgets import current

_PLAIN: Final = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
}
_DEEPEST: Final = 64


def read_tree(text: str) -> pytree.TreeSpec:
    """Returns the tree that a text describes. Errors: ValueError."""
    match _json(text):
        case [1, tree]:
            return _Reader().tree(tree, 0)
    raise ValueError("a tree of arguments is of an unknown version")


class _Reader:
    def __init__(self) -> None:
        self._count = 0

    def tree(self, value: Any, depth: int) -> pytree.TreeSpec:
        self._count += 1
        if depth > _DEEPEST or self._count > current().values:
            raise ValueError("a tree of arguments is too large or too deep")
        match value:
            case {"type": None, "context": None, "children_spec": []}:
                return pytree.treespec_leaf()
            case {"type": str() as name, "context": context, "children_spec": list() as parts}:
                children = [self.tree(part, depth + 1) for part in parts]
                return pytree.TreeSpec(*_class(name, context, len(children)), children)
        raise ValueError("a tree of arguments is damaged")


def _class(name: str, context: Any, count: int) -> tuple[type[Any], Any]:
    """Returns a class, and the data that it adds to a tree with a number of parts."""
    kind = _PLAIN.get(name)
    if kind is tuple or kind is list:
        return kind, None
    if isinstance(context, str) and context != name:
        context = _json(context)
    if kind is not None:
        _check_keys(context, count)
        return kind, context
    known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if known is None:
        last = name.rpartition(".")[2]
        if not last.isidentifier():
            raise ValueError(f"{name!r} is not a class")
        return type(last, (), {}), context
    if isinstance(context, dict):  # of a defaultdict, whose factory is not needed
        keys = context.get("dict_context")
        _check_keys(keys, count)
        return known, [None, keys]
    return known, context


def _check_keys(keys: Any, count: int) -> None:
    if not isinstance(keys, list) or len(keys) != count:
        raise ValueError("a tree of arguments has another number of keys than of parts")
    if not all(isinstance(key, (str, int, float)) or key is None for key in keys):
        raise ValueError("a tree of arguments has a key that is neither text nor a number")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a tree of arguments is too deep") from None
