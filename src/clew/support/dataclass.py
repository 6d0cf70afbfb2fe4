"""`dataclasses.dataclass`, which does its work when a class is first used.

The standard decorator examines every field of a class and compiles up to six methods, which takes
half of the time to import the run time. This one only notes the class: its first object, or the
first look at its fields, makes its `__init__` and all else. The classes are dataclasses: `fields`,
`replace`, `asdict` and `match` work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

from clew.support.lazy import cached_property
from clew.support.locks import Lock

_MISSING: Final = dataclasses.MISSING


class _Factory:
    """Stands for the value of a default factory in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


_KINDS: Final = ("ClassVar", "InitVar", "KW_ONLY")
# The first objects of a class are made without compiling its `__init__`, which takes as long.
_FIRST_OBJECTS: Final = 16
# Held while a class is finished.
_LOCK: Final = Lock()


def _made(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    slots: bool = False,
) -> Any:
    """Decorator: as `dataclasses.dataclass`."""

    def make(one: type[Any]) -> type[Any]:
        if not slots:
            _Deferred(one, frozen, eq, repr).defer()
            return one
        # With slots, the standard decorator makes another class, and prepares it for pickling.
        made: Any = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=slots, frozen=frozen
        )(one)
        missing, fields = _missing(made, eq, repr), dataclasses.fields(made)
        for name in missing:
            setattr(made, name, _WRITERS[name](made, fields, frozen))
        _settle(made, frozen, "__hash__" in missing)
        _describe(made, frozen, eq, repr)
        return made  # type: ignore[no-any-return]

    return make if cls is None else make(cls)


def _missing(made: type[Any], eq: bool, repr: bool) -> list[str]:
    """Returns the methods that a class is to get."""
    own = made.__dict__
    found = [] if "__init__" in own else ["__init__"]
    found += ["__repr__"] if repr and "__repr__" not in own else []
    if eq and "__eq__" not in own:
        found += ["__eq__"] if own.get("__hash__") is not None else ["__eq__", "__hash__"]
    return found


def _settle(made: Any, frozen: bool, may_hash: bool) -> None:
    if frozen:
        made.__setattr__, made.__delattr__ = _refused(made)
    elif may_hash:
        made.__hash__ = None


def _describe(made: Any, frozen: bool, eq: bool, repr: bool) -> None:
    parameters = made.__dataclass_params__
    parameters.init, parameters.repr, parameters.eq, parameters.frozen = True, repr, eq, frozen


def fields(made: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    """Returns the fields of a class, as `dataclasses.fields`, which completes the class."""
    later = made.__dict__.get("__dataclass_fields__")
    return tuple(later.fields) if isinstance(later, _Later) else dataclasses.fields(made)


def _is_frozen(made: type[Any]) -> bool:
    later = made.__dict__["__dataclass_fields__"]
    frozen = later.frozen if isinstance(later, _Later) else made.__dataclass_params__.frozen
    return bool(frozen)


class _Deferred:
    """A class whose methods and fields are made on first use."""

    def __init__(self, made: Any, frozen: bool, eq: bool, repr: bool) -> None:
        self._made = made
        self._options = frozen, eq, repr
        self._frozen = frozen
        self._given = {n: v for n, v in made.__dict__.items() if type(v) is dataclasses.Field}
        self._bases = [b for b in made.__mro__[:0:-1] if "__dataclass_fields__" in b.__dict__]
        self._objects = 0
        if any(_is_frozen(base) != frozen for base in self._bases):
            kinds = ("frozen", "a non-frozen one") if frozen else ("non-frozen", "a frozen one")
            raise TypeError(f"cannot inherit {kinds[0]} dataclass from {kinds[1]}")

    def defer(self) -> None:
        """Puts what makes them in their places."""
        made, missing = self._made, _missing(self._made, *self._options[1:])
        for name, field in self._given.items():
            if field.default is _MISSING:
                delattr(made, name)
            else:
                setattr(made, name, field.default)
        for name in ("__dataclass_fields__", "__dataclass_params__", "__match_args__"):
            setattr(made, name, _Later(name, self))
        for name in missing:
            setattr(made, name, self._first_call(name))
        if "__init__" in missing:
            made.__init__ = self._first_init()
            made.__signature__ = _Signature(made, self)
        _settle(made, self._frozen, "__hash__" in missing)

    def _first_call(self, name: str) -> Callable[..., Any]:
        def call(self: Any, /, *args: Any, **named: Any) -> Any:
            return write(name)(self, *args, **named)

        write = self.write
        call.__name__, call.__qualname__ = name, f"{self._made.__qualname__}.{name}"
        return call

    def _first_init(self) -> Callable[..., None]:
        def __init__(self: Any, /, *args: Any, **named: Any) -> None:
            deferred._objects += 1
            fields = deferred.fields
            plain = fields[: len(args)]
            if deferred._objects > _FIRST_OBJECTS or not _fit(fields, len(args), named):
                deferred.write("__init__")(self, *args, **named)
                return
            put = object.__setattr__ if deferred._frozen else setattr
            for field, value in zip(plain, args, strict=True):
                put(self, field.name, value)
            for field in fields[len(args) :]:
                name = field.name
                if name in named:
                    put(self, name, named[name])
                elif field.default is not _MISSING:
                    put(self, name, field.default)
                elif field.default_factory is not _MISSING:
                    put(self, name, field.default_factory())
            if has_more:
                self.__post_init__()

        deferred, has_more = self, hasattr(self._made, "__post_init__")
        __init__.__qualname__ = f"{self._made.__qualname__}.__init__"
        return __init__

    @cached_property
    def fields(self) -> list[dataclasses.Field[Any]]:
        """The fields, which the standard decorator examines only if someone asks for them."""
        found = {each.name: each for base in self._bases for each in fields(base)}
        is_named = False
        for name, kind in self._made.__annotations__.items():
            marker = kind.partition("[")[0].rpartition(".")[2] if isinstance(kind, str) else ""
            if not marker or marker == "InitVar":
                return list(dataclasses.fields(self._made))
            is_named = is_named or marker == "KW_ONLY"
            if marker in _KINDS:
                continue
            default: Any = getattr(self._made, name, _MISSING)
            field: Any = self._given.get(name) or dataclasses.field(default=default)
            field.name, field.type = name, kind
            if field.kw_only is _MISSING:
                field.kw_only = is_named
            found[name] = field
        return list(found.values())

    def write(self, name: str) -> Callable[..., Any]:
        """Returns a method, which takes its place in the class."""
        method = _WRITERS[name](self._made, self.fields, self._frozen)
        setattr(self._made, name, method)
        return method

    def complete(self) -> None:
        """Makes the class a dataclass for all others."""
        made = self._made
        with _LOCK:
            if not isinstance(made.__dict__.get("__dataclass_fields__"), _Later):
                return
            for name, field in self._given.items():
                setattr(made, name, field)
            if "__match_args__" in made.__dict__:  # not in a second attempt
                del made.__match_args__
            frozen = self._frozen and bool(self._bases)
            if frozen:  # the decorator needs `frozen` if a base is, but refuses these methods
                del made.__setattr__, made.__delattr__
            dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen)(made)
            if frozen:
                _settle(made, frozen, may_hash=False)
            _describe(made, *self._options)


class _Later:
    """An attribute of a class that exists once the class is complete."""

    def __init__(self, name: str, deferred: _Deferred) -> None:
        self._name = name
        self._deferred = deferred

    @property
    def fields(self) -> list[dataclasses.Field[Any]]:
        """The fields of the class."""
        return self._deferred.fields

    @property
    def frozen(self) -> bool:
        """Whether the class is frozen: its objects are immutable."""
        return self._deferred._frozen

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        self._deferred.complete()
        return getattr(owner, self._name)


class _Signature:
    """Has a class's own `__init__` in place when its signature is asked for."""

    def __init__(self, made: type[Any], deferred: _Deferred) -> None:
        self._made = made
        self._deferred = deferred

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if instance is None and owner is self._made:
            self._deferred.write("__init__")
        raise AttributeError("__signature__")


def _fit(fields: list[dataclasses.Field[Any]], count: int, named: dict[str, Any]) -> bool:
    """Whether an object can be made of so many values in order and of named ones. Errors are left
    to the compiled `__init__`, as is what this does not know.
    """
    if count > len(fields):
        return False
    used = 0
    for number, field in enumerate(fields):
        if not field.init:
            return False
        if number < count:
            if field.kw_only or field.name in named:
                return False
        elif field.name in named:
            used += 1
        elif field.default is _MISSING and field.default_factory is _MISSING:
            return False
    return used == len(named)


def _init(
    made: type[Any], fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[..., None]:
    values: dict[str, Any] = {"_factory": _FACTORY, "_set": object.__setattr__}
    plain: list[str] = []
    named: list[str] = []
    body = []
    for number, field in enumerate(fields):
        value = name = field.name
        shown = name
        if field.default_factory is not _MISSING:
            values[f"_d{number}"] = field.default_factory
            shown = f"{name}=_factory"
            value = (
                f"_d{number}() if {name} is _factory else {name}"
                if field.init
                else (f"_d{number}()")
            )
        elif field.default is not _MISSING:
            values[f"_d{number}"] = field.default
            shown = f"{name}=_d{number}"
            value = name if field.init else f"_d{number}"
        elif not field.init:
            continue
        if field.init:
            (named if field.kw_only else plain).append(shown)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    exec(f"def __init__({signature}):\n  " + "\n  ".join(body or ["pass"]), values)
    init: Callable[..., None] = values["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return init


def _repr(
    made: type[Any], fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[[Any], str]:
    names = [field.name for field in fields if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _eq(
    made: type[Any], fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[[Any, Any], Any]:
    key = _key([field for field in fields if field.compare])

    def __eq__(self: Any, other: Any) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return key(self) == key(other)

    return __eq__


def _hash(
    made: type[Any], fields: Sequence[dataclasses.Field[Any]], frozen: bool
) -> Callable[[Any], int]:
    key = _key([f for f in fields if (f.compare if f.hash is None else f.hash)])

    def __hash__(self: Any) -> int:
        return hash(key(self))

    return __hash__


def _key(fields: list[dataclasses.Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns the function that gives an object's fields as a tuple."""
    names = [field.name for field in fields]
    if not names:
        return lambda one: ()
    if len(names) == 1:
        first = attrgetter(names[0])
        return lambda one: (first(one),)
    return attrgetter(*names)


def _refused(made: type[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    def has(self: Any, name: str) -> bool:
        return type(self) is made or any(f.name == name for f in dataclasses.fields(made))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if has(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if has(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return __setattr__, __delattr__


_WRITERS: Final[dict[str, Callable[..., Callable[..., Any]]]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _made
