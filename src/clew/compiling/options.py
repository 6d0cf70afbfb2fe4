"""Options for loading and compiling a model, as plain data for the command line and the explorer.

Every command and every worker of the explorer converts them to arguments here, so a new option of
`clew.compile` reaches all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.support.errors import InputError
from clew.support.files import open_plain
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.size_ranges import read_size_text

_LONGEST_SCHEDULE_BYTES = 1 << 20


@dataclass(frozen=True)
class CompileOptions:
    """Options of `clew.load` (`shapes`, `links`, `trust`) and `clew.compile` (all others).

    `extend` lists Python files with passes, fusions and schedules. `schedules` maps the name of a
    kernel, or a glob of names, to recorded steps, one per line; `choices` maps it to schedule rules
    and values of their choices. `sizes` maps the name of a free dimension to its sizes as text, as
    on the command line (`read_size_text`). `tuned` is `auto`, `none` or a file of records.
    `backends` are names, and `place` is `auto`, or texts `backend=layer,...`.
    """

    target: str = "cpu"
    threads: int | None = None
    opt_level: int = 3
    precision: str = "f32"
    fuse: bool = True
    keep_f32: Sequence[str] = ()
    required: Sequence[str] = ()
    disabled: Sequence[str] = ()
    extend: Sequence[str] = ()
    schedules: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    links: str = "none"
    trust: bool = False
    bounds: str = "check"
    cache: bool = True
    tuned: str = "auto"
    backends: Sequence[str] = ()
    place: Sequence[str] = ()
    fallback: bool = False

    def __str__(self) -> str:
        """The options that differ from their defaults, in words, except threads and the cache."""
        lists = (
            "keep_f32", "required", "disabled", "extend", "schedules", "choices", "shapes",
            "backends", "place",
        )  # fmt: skip
        words = [f"opt level {self.opt_level}"]
        words += [self.precision] if self.precision != "f32" else []
        words += [self.target] if self.target != "cpu" else []
        words += [] if self.fuse else ["not fused"]
        words += [f"tuned={self.tuned}"] if self.tuned != "auto" else []
        words += [f"bounds={self.bounds}"] if self.bounds != "check" else []
        words += [f"sizes {name}={text}" for name, text in self.sizes.items()]
        for name in lists:
            value = getattr(self, name)
            words += [f"{name}={','.join(map(str, value))}"] if value else []
        return ", ".join(words)

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `clew.load`."""
        given: dict[str, Any] = {"links": self.links}
        given |= {"trust": True} if self.trust else {}
        return {**given, "inputs": dict(self.shapes)} if self.shapes else given

    @property
    def compiling(self) -> dict[str, Any]:
        """The arguments of `clew.compile` for a module.

        Errors: I176 (`extend`), I315 (`sizes`), P020 (`schedules`), P021 (`choices`).
        """
        replayed = []
        if self.schedules or self.choices:
            with LOADING, held_interrupts():  # it loads the compiler
                from clew.backends.cpu.schedule_choice import schedule_for  # noqa: PLC0415

            replayed += [schedule_for(k, steps=text) for k, text in self.schedules.items()]
            replayed += [schedule_for(k, choose=text) for k, text in self.choices.items()]
        return {
            "target": self.target,
            "threads": self.threads,
            "opt_level": self.opt_level,
            "precision": self.precision,
            "fuse": "auto" if self.fuse else None,
            "keep_f32": list(self.keep_f32),
            "required": list(self.required),
            "disabled": list(self.disabled),
            "extend": [*map(Path, self.extend), *replayed],
            "sizes": {name: read_size_text(name, text) for name, text in self.sizes.items()},
            "bounds": self.bounds,
            "cache": self.cache,
            "tuned": None if self.tuned == "none" else self.tuned,
            "backends": list(self.backends),
            "place": read_place(self.place),
            "fallback": self.fallback,
        }


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
