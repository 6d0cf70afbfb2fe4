"""Options as JSON values, and as texts of the command line and the explorer's page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from clew.backends.option_fields import checked_names
from clew.support.budgets import Budgets
from clew.support.errors import InputError
from clew.support.files import open_plain
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.size_ranges import read_size_text

R = TypeVar("R")
_LONGEST_SCHEDULE_BYTES: Final = 1 << 20


class Live:
    """The record of a Python object: none."""


LIVE: Final = Live()


def recorded(name: str, value: Any) -> Any:
    """Returns the JSON value of an option; `LIVE` if none can express it."""
    if name == "sizes":
        return {dimension: one.text for dimension, one in value.items()}
    if name == "extend":
        return _plain_value([getattr(item, "record", item) for item in value])
    return _plain_value(asdict(value) if isinstance(value, Budgets) else value)


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (tuple, list)):
        items = [_plain_value(item) for item in value]
        return LIVE if any(item is LIVE for item in items) else items
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        pairs = {key: _plain_value(item) for key, item in value.items()}
        return LIVE if any(item is LIVE for item in pairs.values()) else pairs
    return LIVE


def value_of_record(name: str, value: Any) -> Any:
    """Returns the value of an option from its JSON value.

    Errors: I176, I315, I357, P020 and P021 for other values.
    """
    if name == "sizes" and isinstance(value, Mapping):
        return {dimension: read_size_text(dimension, text) for dimension, text in value.items()}
    if name == "extend" and isinstance(value, (list, tuple)):
        return [_of_schedule(item) if isinstance(item, Mapping) else item for item in value]
    if name == "budgets" and isinstance(value, Mapping):
        return _made(name, Budgets, value)
    if name == "place" and isinstance(value, (list, tuple)):
        return read_place(checked_names("place", value))
    return value


def _of_schedule(record: Mapping[str, Any]) -> Any:
    with LOADING, held_interrupts():  # it loads the compiler
        from clew.backends.cpu.schedule_choice import schedule_for  # noqa: PLC0415

    return _made("extend", schedule_for, record)


def _made(name: str, make: Callable[..., R], record: Mapping[str, Any]) -> R:
    """Returns a value made with the arguments in a record. Errors: I014 for unknown ones."""
    known = inspect.signature(make).parameters
    for unknown in record.keys() - known.keys():
        hint = f"it has {', '.join(known)}"
        raise InputError("I014", f"a record in {name} has {unknown!r:.80}", hint=hint)
    return make(**record)


def read_place(texts: Sequence[str]) -> str | dict[str, list[str]] | None:
    """Returns where parts of a model run, from texts: `first`, `auto`, or `backend=layer,...`, with
    several texts for several backends.

    Errors: I357 for other texts.
    """
    if not texts or list(texts) in (["first"], ["auto"]):
        return texts[0] if texts else None
    found: dict[str, list[str]] = {}
    for text in texts:
        backend, equals, layers = text.partition("=")
        names = [name.strip() for name in layers.split(",") if name.strip()]
        if not (backend and equals and names):
            raise InputError(
                "I357",
                f"{text!r} does not say which layers run where",
                hint="write backend=layer,... with layers or globs of them; or first, or auto",
            )
        found.setdefault(backend.strip(), []).extend(names)
    return found


def place_texts(place: Any) -> list[str]:
    """Returns where parts of a model run, as `read_place` reads it."""
    if isinstance(place, Mapping):
        pairs = ((b, [n] if isinstance(n, str) else n) for b, n in place.items())
        return [f"{backend}={','.join(names)}" for backend, names in pairs]
    return [place] if place else []


def read_schedule(file: Path) -> str:
    """Returns the schedule steps saved in a file.

    Errors: I341 for a file that cannot be read or is not text.
    """
    try:
        with open_plain(file) as stream:
            data = stream.read(_LONGEST_SCHEDULE_BYTES + 1)
        if len(data) > _LONGEST_SCHEDULE_BYTES:
            raise OSError(f"it has more than {_LONGEST_SCHEDULE_BYTES} bytes")
        return data.decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            "I341",
            f"the schedule {str(file)!r} cannot be read: {reason}",
            hint="clew trace MODEL --kernel NAME --save-schedule FILE writes one",
        ) from None
