"""The decorator makes dataclasses like the standard one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, ClassVar

import pytest

from clew.support.dataclass import dataclass as lazy
from clew.support.dataclass import fields

STANDARD = dataclasses.dataclass


def classes(decorator: Any) -> dict[str, Any]:
    @decorator(frozen=True)
    class Point:
        """A point."""

        x: int
        y: int = 2
        names: list[str] = field(default_factory=list)
        cached: int = field(default=0, init=False, compare=False, repr=False)

    @decorator(frozen=True)
    class Named(Point):
        """A subclass with a field."""

        name: str = "a"

    @decorator
    class Loose:
        """A class that can change."""

        a: int
        b: int = field(default=3, kw_only=True)

        def __post_init__(self) -> None:
            self.total = self.a + self.b

    @decorator(frozen=True, slots=True)
    class Slotted:
        """Without a dict."""

        a: int
        b: str = "b"

    @decorator(frozen=True, eq=False, repr=False)
    class Plain:
        """Compared by identity."""

        a: int

    @decorator
    class Own:
        """With methods of its own."""

        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    @decorator(frozen=True)
    class Empty:
        """Without fields."""

    return {c.__name__: c for c in (Point, Named, Loose, Slotted, Plain, Own, Empty)}


CASES = [
    ("Point", (1,), {}), ("Point", (1, 5), {"names": ["b"]}), ("Named", (1, 2, []), {"name": "c"}),
    ("Loose", (1,), {}), ("Loose", (1,), {"b": 9}), ("Slotted", (1,), {}), ("Own", (1,), {}),
    ("Empty", (), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "named"), CASES)
def test_objects_are_like_those_of_the_standard_decorator(
    name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    seen = []
    for decorator in (STANDARD, lazy):
        found = classes(decorator)
        made, again = found[name](*args, **named), found[name](*args, **named)
        facts: list[Any] = [
            repr(made).rpartition(".")[2], made == again, made == 1, made != again,
            dataclasses.asdict(made), dataclasses.astuple(made), found[name].__match_args__,
            [f.name for f in dataclasses.fields(made)], found[name].__hash__ is None,
            str(inspect.signature(found[name])), copy.copy(made) == made,
            dataclasses.replace(made) == made, found[name].__dataclass_params__.frozen,
        ]  # fmt: skip
        first = next(iter(dataclasses.fields(made)), None)
        field_name = "x" if first is None else first.name
        # The standard decorator compares with the class before it had slots.
        changed = () if name == "Slotted" else (field_name, "other")
        for act in (
            lambda made=made: hash(made) and None,
            *(lambda made=made, n=n: setattr(made, n, 1) for n in changed),
            *(lambda made=made, n=n: delattr(made, n) for n in changed),
        ):
            try:
                facts.append(act())
            except (TypeError, AttributeError) as error:
                facts.append((type(error), str(error).rpartition(".")[2]))
        seen.append(facts)
    assert seen[0] == seen[1]


def test_comparison_and_hashes() -> None:
    found = classes(lazy)
    point, named, plain = found["Point"], found["Named"], found["Plain"]
    assert point(1, 2) != point(1, 3)
    assert point(1) != named(1)
    assert plain(1) != plain(1)
    assert repr(plain(1)).startswith("<")
    slotted = found["Slotted"]
    assert len({slotted(1), slotted(1), slotted(2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        slotted(1).a = 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(found["Loose"](1))


@pytest.mark.parametrize(("args", "named"), [((), {}), ((1, 2, [], 4, 5), {}), ((1,), {"z": 1})])
def test_wrong_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        classes(lazy)["Point"](*args, **named)


def test_a_standard_dataclass_can_extend_one() -> None:
    base = classes(lazy)["Point"]

    @STANDARD(frozen=True)
    class More(base):  # type: ignore[misc, valid-type]
        """One more field."""

        z: int = 0

    assert More(1, 2, [], 5).z == 5
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass"):
        lazy(type("Loose", (base,), {}))


def test_classes_that_extend_others() -> None:
    def fields_and_order(decorator: Any) -> list[Any]:
        base = classes(decorator)["Point"]

        class Between(base):  # type: ignore[misc, valid-type]
            """No dataclass of its own; its attribute is a default below."""

            y = 7
            other = 8

        @decorator(frozen=True)
        class Below(Between):
            """A field of the base again, with the attribute as its default, and others."""

            y: int
            z: list[int] = field(default_factory=lambda: [4])
            other: int

        made = [Below(1), Below(1, 2, ["n"], [3], 5), Below(x=2, names=["m"])]
        for _ in range(20):  # the compiled `__init__`, too
            made.append(Below(3))
        with pytest.raises(dataclasses.FrozenInstanceError):
            made[0].z = []
        return [
            *map(dataclasses.astuple, made), [f.name for f in fields(Below)], Below(1) == Below(1),
            Below(1) == Below(2), Below.__match_args__, str(inspect.signature(Below)),
            isinstance(Below(1), base), dataclasses.replace(Below(1), z=[0]).z,
            [f.name for f in dataclasses.fields(Below)], Below(1) != base(1),
        ]  # fmt: skip

    found = fields_and_order(lazy)
    assert found == fields_and_order(STANDARD)
    assert found[0] == (1, 7, [], 0, [4], 8)


def test_it_can_be_pickled() -> None:
    made = Pickled(1, "b")
    assert pickle.loads(pickle.dumps(made)) == made
    slotted = PickledSlots(1)
    assert pickle.loads(pickle.dumps(slotted)) == slotted


@lazy(frozen=True)
class Pickled:
    """At module level."""

    a: int
    b: str


@lazy(frozen=True, slots=True)
class PickledSlots:
    """At module level."""

    a: int


@lazy(frozen=True)
class Options:
    """With a name of the class, keywords alone, and defaults that are fields."""

    kind: ClassVar[str] = "options"
    name: str
    _: dataclasses.KW_ONLY
    size: int = field(default=3, metadata={"unit": "bytes"})
    parts: list[int] = field(default_factory=list)


def test_a_class_before_its_first_object() -> None:
    assert Options.size == 3
    assert [f.name for f in fields(Options)] == ["name", "size", "parts"]
    assert fields(Options)[1].metadata["unit"] == "bytes"
    assert str(inspect.signature(Options)).startswith("(name: 'str', *, size: 'int' = 3")
    assert [f.kw_only for f in dataclasses.fields(Options)] == [False, True, True]
    assert Options.__match_args__ == ("name",)
    assert not hasattr(Options, "parts")


def test_first_objects_are_like_later_ones() -> None:
    made = classes(lazy)["Loose"]
    objects = [made(1, b=number) for number in range(40)]
    assert [vars(one) for one in objects] == [{"a": 1, "b": n, "total": n + 1} for n in range(40)]
    assert pickle.loads(pickle.dumps(Options("a"))) == Options("a")
    assert Options("a").parts is not Options("a").parts
    with pytest.raises(TypeError, match=r"__init__\(\) takes 2 positional arguments"):
        Options("a", 4)  # type: ignore[misc]


def test_a_class_is_finished_by_several_threads() -> None:
    for name in ("Point", "Loose", "Empty"):
        made = classes(lazy)[name]
        with ThreadPoolExecutor(8) as pool:
            seen = set(pool.map(lambda _, made=made: len(dataclasses.fields(made)), range(16)))
        assert len(seen) == 1
