"""Fields of option groups: help, command-line form, default and check of each option."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, ClassVar

import numpy as np

from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.size_ranges import SizeRange


@dataclass(frozen=True)
class Option:
    """What is known of an option besides its name, type and default.

    `help` is one line for `--help` and `help(clew.compile)`; `more` follows it in Python only.
    `flag` is the name on the command line: None if it follows from the option's, "" if it has none
    there. `metavar` is the form of a value, `kind` its type if the default does not tell, and
    `at_least` and `at_most` are the limits of a number. `check` returns the value to keep, or
    raises the coded error.

    Programs do not depend on an option that is not `is_keyed`. With one that is not `is_storable`,
    no stored program may be used: it holds Python objects, names backends, or acts while a program
    is made or run. Saved models keep options that are `is_saved`, and one line about a build
    (`str`) has those that are `is_told`.
    """

    help: str
    more: str = ""
    flag: str | None = None
    metavar: str = ""
    kind: type | None = None
    at_least: int | None = None
    at_most: int | None = None
    shown_default: str = ""
    is_keyed: bool = True
    is_storable: bool = True
    is_saved: bool = True
    is_told: bool = True
    check: Callable[[Any], Any] | None = None


def option(default: Any, help: str, more: str = "", **facts: Any) -> Any:
    """Returns the field of an option."""
    return field(default=default, metadata={Option: Option(help, more, **facts)})


def grouped(default: Any, kind: type[Group]) -> Any:
    """Returns the field of a group of options, whose help is that of the first one."""
    first: Option = fields_of(kind)[0].metadata[Option]
    said = (first.help, first.more) if kind.is_short else ((kind.__doc__ or "").strip(), "")
    return field(default=default, metadata={Option: Option(*said), Group: kind})


def fields_of(kind: type[Group]) -> tuple[Field[Any], ...]:
    """Returns the fields of a group."""
    return fields(kind)  # type: ignore[arg-type]


class Group:
    """Options that belong together. The `repr` shows those that differ from their defaults.

    Where a group is expected, a value of its first option stands for the group, if `is_short`.
    """

    is_short: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [one.name for one in fields_of(type(self))]
        return all(are_equal(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        """A hash of what differs from the defaults, but not of the values, some of which are arrays
        and mappings.
        """
        changed = [one.name for one in fields_of(type(self)) if not self.has_default(one)]
        return hash((type(self).__name__, *changed))

    def has_default(self, one: Field[Any]) -> bool:
        """Whether an option has its default."""
        return are_equal(getattr(self, one.name), default_of(one))

    def __post_init__(self) -> None:
        for one in fields_of(type(self)):
            object.__setattr__(self, one.name, checked(one, getattr(self, one.name)))

    def __repr__(self) -> str:
        parts: list[str] = []
        for number, one in enumerate(fields_of(type(self))):
            value = getattr(self, one.name)
            if not self.has_default(one):
                named = number or parts or not self.is_short
                parts.append(f"{one.name}={shown(value)}" if named else shown(value))
        return f"{type(self).__name__}({', '.join(parts)})"


def are_equal(a: Any, b: Any) -> bool:
    """Whether values of options are equal; arrays are if their shape, dtype and elements are."""
    if a is b:
        return True
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(are_equal(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def default_of(one: Field[Any]) -> Any:
    """Returns the default of an option, as a group holds it."""
    return checked(one, one.default)


def checked(one: Field[Any], value: Any) -> Any:
    """Returns the value to keep of an option. Errors: I015 and those of its check."""
    kind: type[Group] | None = one.metadata.get(Group)
    about: Option = one.metadata[Option]
    if kind is not None:
        if value is None:
            return kind()
        if isinstance(value, kind):
            return value
        if isinstance(value, Group) or not kind.is_short:
            raise wrong_value(one.name, value, f"it is clew.{kind.__name__}(...)")
        made: Callable[[Any], Any] = kind
        return made(value)
    if about.check is not None:
        return about.check(value)
    if isinstance(one.default, bool):
        return checked_bool(one.name, value)
    if isinstance(one.default, tuple):
        return checked_list(one.name, value)
    return value


def wrong_value(name: str, value: object, hint: str) -> InputError:
    """Returns the error for a value of the wrong kind."""
    return InputError("I015", f"{name} cannot be {value!r:.80}", hint=hint)


def checked_bool(name: str, value: Any) -> Any:
    """Errors: I015 for a value that is no bool."""
    if not isinstance(value, bool):
        raise wrong_value(name, value, "it is True or False")
    return value


def checked_list(name: str, value: Any) -> tuple[Any, ...]:
    """Returns the items of a list. Errors: I015 for a text or a single value."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong_value(name, value, f"it is a list, as in {name}=[...]")
    return tuple(value)


def checked_names(name: str, value: Any) -> tuple[str, ...]:
    """Returns a list of names. Errors: I015 for other elements."""
    found = checked_list(name, value)
    for one in found:
        if not isinstance(one, str):
            raise wrong_value(name, value, f"it is a list of names, and {one!r:.80} is none")
    return found


def shown(value: Any) -> str:
    """Returns the `repr` of a value, in the form in which it is given."""
    if isinstance(value, Mapping) and any(isinstance(one, SizeRange) for one in value.values()):
        return repr({n: getattr(one, "given", one) for n, one in value.items()})
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


def described(kind: type[Group]) -> str:
    """Returns the options of a group as text, a paragraph each."""
    found = ["Options:", ""]
    for one in fields_of(kind):
        about: Option = one.metadata[Option]
        group: type[Group] | None = one.metadata.get(Group)
        text = f"{one.name}: {about.help} {about.more}".rstrip()
        if group is not None:
            inner = ", ".join(f.name for f in fields_of(group))
            text = f"{text} In full: `clew.{group.__name__}({inner})`."
        found.append(textwrap.fill(text, 96, subsequent_indent="    ", initial_indent="  "))
    return "\n".join(found)
