"""A candidate: a change to a model or to its compilation that may make it faster."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from clew.backends.compile_options import CompileOptions
from clew.editing.surgery import Plan, Surgeon
from clew.ir.module import Module
from clew.support.errors import InputError
from clew.trace.places import CodePlace

Array = np.ndarray[Any, Any]
Arrays: TypeAlias = Mapping[str, Array]
Effort = Literal["option", "exporter", "attribute", "graph", "retraining"]
"""What the author has to do: give an option of `clew.compile`, give an option of the exporter,
change an attribute or a line of the model's source, let `--apply` rewrite the graph, or train the
model again.
"""
Licence = Literal["exact", "rounding", "approximation", "interface", "retraining"]
"""How results change: not at all; by the order of summation; by an approximation, whose error is
measured; not at all, but the model is called differently or returns less; or the model computes
another function, which must be trained.
"""
COMPARED: tuple[Licence, ...] = ("exact", "rounding", "interface")
"""Licences under which outputs must agree up to rounding."""


@dataclass(frozen=True)
class Change:
    """What a candidate changes.

    `edits` adds to a plan over the nodes of the module that the rule has read, so the edits of
    several candidates combine. `module` changes the module after these edits; it finds inputs and
    outputs by name. `options` are options of `clew.compile`. `given` changes the inputs of both
    models in a comparison, for changes that hold for some inputs only; `inputs` maps the inputs of
    a call by name to those of the changed model, `outputs` the changed model's outputs to the
    original's (those that remain). One call of the changed model does the work of `calls` calls.
    """

    edits: Callable[[Plan], None] | None = None
    module: Callable[[Module], Module] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Callable[[Arrays], Arrays] | None = None
    inputs: Callable[[Arrays], Arrays] | None = None
    outputs: Callable[[Arrays], Arrays] | None = None
    calls: int = 1


@dataclass(frozen=True)
class Candidate:
    """A change that a rule proposes. Its effect is not known until it is measured.

    `what` says in one sentence what to change, `why` what it saves, and `how` where the author of
    the model makes the change (the exporter's option, the line of source). `layers` are the layers
    that it changes. `share` is the share of their measured time that the rule expects to save;
    without it, the gain is predicted from the work of the changed graph. `least` is the share of a
    call that the rule expects to save at least, for changes that affect other layers. A candidate
    with `capacity` makes layers wider by this share (0.25 is a quarter): it is advice if it takes
    hardly more time.
    """

    rule: str
    what: str
    why: str
    how: str
    layers: tuple[str, ...]
    effort: Effort
    licence: Licence
    change: Change
    share: float | None = None
    least: float = 0.0
    capacity: float = 0.0

    def __post_init__(self) -> None:
        """Errors: I516."""
        kinds = self.effort in get_args(Effort) and self.licence in get_args(Licence)
        numbers = (self.share or 0.0, self.least, self.capacity)
        finite = all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers)
        if not kinds or not finite or self.change.calls < 1:
            raise InputError(
                "I516",
                f"a candidate has effort {self.effort!r}, licence {self.licence!r}, numbers "
                f"{numbers} and {self.change.calls} calls",
                hint="efforts and licences are those of docs/advise.md; numbers are finite, and "
                "calls are at least 1",
            )

    @property
    def key(self) -> str:
        """Identifies the candidate in any process that reads the same model."""
        text = "\n".join((self.rule, self.what, *self.layers))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Where:
    """Where a layer is in the author's source: its name and operator in the model's file, and, of
    a PyTorch model, the place in its code.
    """

    layer: str
    op: str = ""
    frontend: str = ""
    place: CodePlace | None = None

    def __str__(self) -> str:
        named = f"{self.layer} ({self.frontend} {self.op})" if self.op else self.layer
        if self.place is None or not self.place.where:
            return named
        return f"{named}, {self.place.where}"

    def to_json(self) -> dict[str, Any]:
        """Returns the place as JSON values."""
        place = {} if self.place is None else self.place._asdict()
        kept = {k: place[k] for k in ("module", "file", "line", "code") if place.get(k)}
        return {"layer": self.layer, "op": self.op, "frontend": self.frontend, **kept}


def changed(
    module: Module, options: CompileOptions, changes: Iterable[Change]
) -> tuple[Module, CompileOptions]:
    """Returns a module and options with all of the changes.

    Errors: those of operators that reject the changed types, and of options.
    """
    plan = Plan()
    every = list(changes)
    for change in every:
        if change.edits is not None:
            change.edits(plan)
    if plan.edges or plan.values or plan.pieces:
        module = Surgeon(plan).module(module)
    for change in every:
        if change.module is not None:
            module = change.module(module)
        options = options.changed(**change.options)
    return module, options


def conflicts(one: Change, other: Change) -> bool:
    """Whether two changes edit the same value, or set the same option."""
    plans = Plan(), Plan()
    for change, plan in zip((one, other), plans, strict=True):
        if change.edits is not None:
            change.edits(plan)
    first, second = plans
    return bool(
        first.edges.keys() & second.edges.keys()
        or first.values.keys() & second.values.keys()
        or first.pieces.keys() & second.pieces.keys()
        or one.options.keys() & other.options.keys()
        or max(one.calls, other.calls) > 1
    )
