"""The form of a model's calls: how inputs and outputs are nested in tuples, lists and dicts.

A form is plain data, so that files and the text form hold it. In it, a tensor is the number of its
input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.lazy import cached_property

Tree: TypeAlias = "int | tuple[Any, ...]"
"""A tensor's number, or a tuple: `("=", value)` for a fixed value, `("number", n)` for a tensor
that is returned as a number, `("count", n)` for an integer that a program takes as a vector of that
size, `("tuple", trees)`, `("list", trees)`, `("dict", keys, trees)`, or
`("object", class, keys, trees)` for an object with parts (without keys if these have no names).
"""

FORM: Final = "call_form"
"""The attribute of a main function that holds its form: `CallForm.plain`."""
_NUMBERS: Final = ("number", "count")
Leaves: TypeAlias = "Callable[[Any], list[Any]]"
_flatten: list[Leaves] = []


def objects_flattened_by(leaves: Leaves) -> None:
    """Sets the function that returns the leaves of objects, such as those registered with torch."""
    _flatten[:] = [leaves]


@dataclass(frozen=True)
class CallForm:
    """The parameters of a model's function by name, those without a default value first, and the
    trees of their values and of the result.
    """

    names: tuple[str, ...]
    parameters: tuple[Tree, ...]
    result: Tree

    @property
    def plain(self) -> tuple[Any, ...]:
        """The form as nested tuples."""
        return (self.names, self.parameters, self.result)

    @staticmethod
    def of(plain: Any) -> CallForm | None:
        """Returns the form in `plain`, which may come from a file; None if it is not a form."""
        match _tuples(plain):
            case (tuple(names), tuple(parameters), result) if len(names) == len(parameters):
                return CallForm(tuple(map(str, names)), parameters, result)
        return None

    @property
    def is_flat(self) -> bool:
        """Whether the parameters are the inputs in order, without nesting or fixed values."""
        return self.parameters == tuple(
            ("count", n) if isinstance(tree, tuple) and tree[:1] == ("count",) else n
            for n, tree in enumerate(self.parameters)
        )

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the parameters are the inputs in order, and tensors."""
        return self.parameters == tuple(range(len(self.parameters)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of the inputs that are integers, which programs take as sizes of vectors."""
        found: list[int] = []
        left: list[Tree] = list(self.parameters)
        while left:
            match left.pop():
                case ("count", int(number)):
                    found.append(number)
                case ("tuple" | "list" | "dict" | "object", *_, tuple(parts)):
                    left += parts
        return tuple(sorted(found))

    def inputs(
        self, given: Sequence[Any], named: Mapping[str, Any], count: int
    ) -> list[Any] | None:
        """Returns the `count` inputs in order from the arguments of a call; None if the arguments
        are not in this form.
        """
        if self._is_plain and not named and len(given) == count == len(self.names):
            return None if any(isinstance(v, (Mapping, tuple)) for v in given) else list(given)
        if len(given) > len(self.names) or any(n not in self.names for n in named):
            return None
        values = dict(zip(self.names, given, strict=False))
        if any(name in values for name in named):
            return None
        values.update(named)
        found: dict[int, Any] = {}
        for name, tree in zip(self.names, self.parameters, strict=True):
            if name not in values:
                if _leaves(tree):
                    return None
                continue
            if not _take(tree, values[name], found):
                return None
        return [found[n] for n in range(count)] if len(found) == count else None

    def without(self, inputs: Collection[int], outputs: Collection[int]) -> CallForm:
        """Returns the form of calls without some inputs and outputs; the others keep their order.
        Nested values without any other parts are left out, and so is a tuple around the only
        result that remains.
        """
        given = dict(enumerate(_pruned(t, inputs) for t in self.parameters))
        kept = [n for n, tree in given.items() if tree is not None]
        result = _pruned(self.result, outputs)
        if isinstance(result, tuple) and result != self.result and _is_alone(result):
            (result,) = result[-1]
        return CallForm(
            tuple(self.names[n] for n in kept),
            tuple(_renumbered(given[n], inputs) for n in kept),
            ("tuple", ()) if result is None else _renumbered(result, outputs),
        )

    def results(self, outputs: Sequence[Any]) -> Any:
        """Returns the outputs in the form of the result."""
        return _built(self.result, outputs)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _pruned(tree: Tree, gone: Collection[int]) -> Tree | None:
    """Returns a tree without some tensors; None if these were its only ones."""
    if not isinstance(tree, tuple) or tree[0] in ("=", *_NUMBERS):
        number = tree if isinstance(tree, int) else tree[1] if tree[0] != "=" else None
        return None if number in gone and number is not None else tree
    children = [_pruned(child, gone) for child in tree[-1]]
    if children and all(child is None for child in children):
        return None
    kept = [n for n, child in enumerate(children) if child is not None]
    keys = [tuple(k[n] for n in kept) if k else () for k in tree[1:-1] if isinstance(k, tuple)]
    plain = [part for part in tree[:-1] if isinstance(part, str)]
    return (*plain, *keys, tuple(children[n] for n in kept))


def _is_alone(tree: Tree) -> bool:
    return isinstance(tree, tuple) and tree[0] == "tuple" and len(tree[-1]) == 1


def _renumbered(tree: Any, gone: Collection[int]) -> Tree:
    """Returns a tree with its tensors renumbered, without those that are gone."""
    if isinstance(tree, int):
        return tree - sum(n < tree for n in gone)
    if tree[0] == "=":
        return tuple(tree)
    if tree[0] in _NUMBERS:
        return (tree[0], _renumbered(tree[1], gone))
    return (*tree[:-1], tuple(_renumbered(child, gone) for child in tree[-1]))


def _leaves(tree: Tree) -> int:
    """Returns the number of tensors in a tree."""
    if isinstance(tree, int):
        return 1
    if tree[0] in ("=", *_NUMBERS):
        return int(tree[0] != "=")
    return sum(map(_leaves, tree[-1]))


def _take(tree: Tree, value: Any, found: dict[int, Any]) -> bool:
    """Puts the tensors of a value into `found` by number; False if its form is not the tree's.

    Errors: I414 for a value other than the one that was fixed.
    """
    if isinstance(tree, int):
        found[tree] = value
        return not isinstance(value, (Mapping, tuple))
    kind = tree[0]
    if kind == "=":
        if value != tree[1]:
            raise InputError(
                "I414",
                f"an argument is {value!r}, but the model was imported for {tree[1]!r}",
                hint="import it again with that value: only tensors may change",
            )
        return True
    if kind in _NUMBERS:
        found[tree[1]] = value
        return True
    children = tree[-1]
    if kind in ("tuple", "list"):
        parts = list(value) if isinstance(value, (tuple, list)) else None
    elif kind == "dict":
        known = isinstance(value, Mapping) and set(value) == set(tree[1])
        parts = [value[key] for key in tree[1]] if known else None
    else:
        parts = _parts_of_object(tree, value)
    if parts is None or len(parts) != len(children):
        return False
    return all(_take(child, part, found) for child, part in zip(children, parts, strict=True))


def _parts_of_object(tree: Tree, value: Any) -> list[Any] | None:
    assert not isinstance(tree, int)
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, Mapping):
        return [value[k] for k in tree[2] if k in value]
    return _flatten[0](value) if _flatten else None


def _built(tree: Tree, outputs: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return outputs[tree]
    kind = tree[0]
    if kind == "=":
        return tree[1]
    if kind == "number":
        return outputs[tree[1]].item()
    parts = [_built(child, outputs) for child in tree[-1]]
    if kind == "tuple":
        return tuple(parts)
    if kind == "list":
        return parts
    keys = tree[1] if kind == "dict" else tree[2]
    return dict(zip(keys, parts, strict=True)) if keys else tuple(parts)
