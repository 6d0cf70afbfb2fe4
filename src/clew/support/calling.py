"""Binds the inputs of a run: arrays in order, a mapping by name, or keywords.

Everything that runs a model uses these functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from clew.support.errors import InputError
from clew.support.near import listed, near

if TYPE_CHECKING:
    from clew.support.call_form import CallForm

_NONE: Final[Mapping[str, Any]] = {}


def in_order(
    names: Sequence[str],
    given: Sequence[Any],
    named: Mapping[str, Any] = _NONE,
    *,
    maps: Collection[str] = (),
    options: Collection[str] = (),
    defaults: Mapping[str, Any] = _NONE,
    of: str = "model",
) -> list[Any]:
    """Returns the inputs in the order of `names`.

    `given` are values in this order, or one mapping by name; `named` holds keywords. `maps` names
    the inputs whose own value is a mapping. `options` are the other keywords of the called
    function, for the hint. `defaults` are the values of inputs that need not be given. `of` names
    the owner of these inputs in errors.

    Errors: I040 (too many or too few), I041 (names), I300 (given twice), I301 (a mapping and
    other values).
    """
    if given and isinstance(given[0], Mapping) and _is_by_name(given[0], names, maps):
        if len(given) > 1:
            raise InputError(
                "I301",
                "both a mapping of inputs and other values are given",
                hint="pass one mapping by name, or values in order",
            )
        found = dict(given[0])
    else:
        if len(given) > len(names) or (not named and _lacks(len(given), names, defaults)):
            raise InputError(
                "I040",
                f"{len(given)} inputs given, but the {of} has {len(names)}",
                hint=_signature(names, of),
            )
        found = dict(zip(names, given, strict=False))
    twice = [name for name in named if name in found]
    if twice:
        raise InputError(
            "I300", f"input {listed(twice)} is given twice", hint=_signature(names, of)
        )
    found = {**defaults, **found, **named}
    return list(by_name(names, found, options=options, of=of).values())


def picker(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that returns the items of a mapping or list at these keys, in order.

    Errors of that function: KeyError or IndexError.
    """
    if not keys:  # `itemgetter` returns a tuple of two and more
        return lambda items: ()
    if len(keys) == 1:
        (only,) = keys
        return lambda items: (items[only],)
    return operator.itemgetter(*keys)


def _lacks(count: int, names: Sequence[str], defaults: Mapping[str, Any]) -> bool:
    """Whether a number of values in order is too few."""
    return any(name not in defaults for name in names[count:])


def by_name(
    names: Sequence[str],
    given: Mapping[str, Any],
    *,
    partial: bool = False,
    options: Collection[str] = (),
    of: str = "model",
) -> dict[str, Any]:
    """Returns inputs by name in the model's order; with `partial` some may be missing.

    Errors: I041.
    """
    missing = [] if partial else [n for n in names if n not in given]
    extra = [str(n) for n in given if n not in names]
    if not missing and not extra:
        return {n: given[n] for n in names if n in given}
    parts = [f"missing {listed(missing)}"] if missing else []
    parts += [f"unknown {listed(extra)}"] if extra else []
    close = near(extra[0], [*(missing or names), *options]) if extra else []
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    hint += _signature(names, of)
    raise InputError("I041", f"inputs do not match: {'; '.join(parts)}", hint=hint)


def one_argument(
    names: Sequence[str],
    inputs: Any,
    *,
    maps: Collection[str] = (),
    defaults: Mapping[str, Any] = _NONE,
    partial: bool = False,
) -> dict[str, Any]:
    """Returns, by name, the inputs in a single argument: a mapping by name, a tuple or list in
    order, or the value of the only input. `defaults` are the values of inputs that need not be
    given.

    Errors: those of `in_order`.
    """
    if isinstance(inputs, Mapping) and _is_by_name(inputs, names, maps):
        return by_name(names, {**defaults, **inputs}, partial=partial)
    needed = sum(name not in defaults for name in names)
    several = isinstance(inputs, (tuple, list)) and (needed != 1 or len(inputs) == 1)
    given = list(inputs) if several else [inputs]
    values = in_order(names, given, maps=maps, defaults=defaults)
    return dict(zip(names, values, strict=True))


def _is_by_name(given: Mapping[Any, Any], names: Sequence[str], maps: Collection[str]) -> bool:
    """Whether a mapping holds inputs by name. If the first input itself takes a mapping, it may
    instead be the value of that input.
    """
    if not names or names[0] not in maps:
        return True
    values = [v for n, v in given.items() if n in maps]
    return (
        bool(given)
        and set(given) <= set(names)
        and all(v is None or isinstance(v, Mapping) for v in values)
    )


def _signature(names: Sequence[str], of: str) -> str:
    return f"the {of}'s inputs are {listed(names)}" if names else f"the {of} takes no inputs"


def plain_count(inputs: int, form: CallForm | None) -> int:
    """Returns the number of arguments with which a call may give the inputs in order. If there are
    no inputs, or nested ones, it is -1, which no call has.
    """
    return inputs if inputs and (form is None or form.is_flat) else -1
