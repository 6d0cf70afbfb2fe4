"""The subject of advice: a model as imported, its build, and the profile of its calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.advice.candidate import Array, Where
from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.interpret import interpret_values
from clew.ir.module import Module
from clew.ir.visit import post_order, users
from clew.machine.target import Target, target_of
from clew.profile.modes import profile
from clew.profile.report import Profile
from clew.quantization.feeds import Feeds, feeds_of
from clew.quantization.sequences import Sequences
from clew.runtime.threads import thread_count
from clew.support.errors import Hint, InputError
from clew.support.lazy import cached_property
from clew.support.shown import Shown
from clew.trace.places import PLACES, CodePlace

_MOST_EVALUATED: Final = 1 << 24  # elements of a constant that rules compute
_PROFILED_S: Final = 1.0
_MOST_SAMPLES: Final = 8  # of the caller's
SAMPLES: Final = 3
"""The number of random sets of inputs if the caller gives none."""


class Subject(Shown):
    """A model for which advice is sought.

    `module` is the model as imported, with its sources, and `options` those that it is compiled
    with. `samples` are inputs of calls in the order of the model's inputs, at least one; `given`
    says whether they are the caller's (in the forms of `clew.quantize`'s calibration data).
    """

    def __init__(
        self,
        module: Module,
        options: CompileOptions,
        samples: Any = None,
        *,
        name: str = "model",
    ) -> None:
        self.module = module
        self.options = options
        self.name = name
        self.compiled: CompiledModel = compile(module, **options.values())
        self.given = samples is not None
        self.samples: list[list[Array]] = (
            [self.compiled.checked(self._drawn(seed)) for seed in range(SAMPLES)]
            if samples is None
            else [
                self.compiled.checked((), named)
                for named in itertools.islice(self._read(samples), _MOST_SAMPLES)
            ]
        )

    def _read(self, samples: Any) -> Feeds:
        return feeds_of(self.compiled, samples, Sequences(self.module))

    def _about(self) -> str:
        return self.name

    def _drawn(self, seed: int) -> list[Any]:
        """Errors: I512 for free sizes, which determine the cost of a call."""
        free = [spec.name for spec in self.compiled.inputs if not spec.is_static]
        if free:
            raise InputError(
                "I512",
                f"input {free[0]!r} has free sizes, but advice is measured at fixed sizes",
                hint=Hint(
                    "give inputs of calls (samples=[...]), or fix the sizes: sizes={name: 128}",
                    cli="give inputs of calls (--samples FOLDER), or fix the sizes with "
                    "--sizes NAME=128",
                ),
            )
        return self.compiled.drawn(seed=seed)

    # --- the machine ---

    @property
    def target(self) -> Target:
        """The machine that the model is compiled for."""
        return target_of(self.options.target)

    @property
    def threads(self) -> int:
        """The threads of a call."""
        return thread_count(self.options.threads)

    # --- the graph ---

    @cached_property
    def nodes(self) -> list[Expr]:
        """The nodes of the main function, operands first."""
        return [n for n in post_order(self.module.main.body) if not isinstance(n, Function)]

    @cached_property
    def calls(self) -> list[Call]:
        """The calls of the main function, operands first."""
        return [n for n in self.nodes if isinstance(n, Call)]

    @cached_property
    def users(self) -> Mapping[int, list[Expr]]:
        """The nodes that read each node, by its id."""
        return users(self.module.main)

    def readers(self, node: Expr) -> list[Expr]:
        """Returns the nodes of the main function's body that read a node."""
        return [u for u in self.users.get(node.id, ()) if u is not self.module.main]

    def is_output(self, node: Expr) -> bool:
        """Whether a node is an output of the model."""
        body = self.module.main.body
        return node is body or any(field is node for field in body.children)

    @cached_property
    def _fixed(self) -> frozenset[int]:
        """The nodes that only constants determine."""
        found: set[int] = set()
        for node in self.nodes:
            below = [c for c in node.children if not isinstance(c, Function)]
            if isinstance(node, Constant) or (below and all(c.id in found for c in below)):
                found.add(node.id)
        return frozenset(found)

    def is_fixed(self, node: Expr) -> bool:
        """Whether only constants determine a node."""
        return node.id in self._fixed

    def value(self, node: Expr) -> Array | None:
        """Returns the value of a node that only constants determine, else None; also None for a
        large one that would have to be computed.
        """
        if isinstance(node, Constant):
            return node.data
        if node.id not in self._fixed:
            return None
        if node.id not in self._values:
            self._values[node.id] = self._computed(node)
        return self._values[node.id]

    @cached_property
    def _values(self) -> dict[int, Array | None]:
        return {}

    def _computed(self, node: Expr) -> Array | None:
        size = getattr(node.type, "size", None)
        if not isinstance(size, int) or size > _MOST_EVALUATED:
            return None
        function = Function((), node)
        found = interpret_values(function, (), [node.id], self.module).get(node.id)
        return found if isinstance(found, np.ndarray) else None

    # --- time ---

    @cached_property
    def profile(self) -> Profile:
        """The profile of calls with the first sample, by kernel and layer."""
        return profile(self.compiled, self.samples[0], seconds=_PROFILED_S, warmup=2, sample=False)

    @property
    def call_ns(self) -> float:
        """The nanoseconds of a call."""
        return self.profile.wall.ns

    @cached_property
    def _layer_ns(self) -> Mapping[str, float]:
        return {row.layer: row.ns for row in self.profile.layers}

    def ns(self, layers: Sequence[str]) -> float:
        """Returns the measured nanoseconds of layers in a call."""
        return sum(self._layer_ns.get(layer, 0.0) for layer in dict.fromkeys(layers))

    # --- the author's source ---

    @cached_property
    def _places(self) -> Mapping[str, CodePlace]:
        stored = self.module.main.attrs.get(PLACES, ())
        return {place.layer: place for place in (CodePlace(*one) for one in stored)}

    @cached_property
    def _ops(self) -> Mapping[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        for node in self.nodes:
            for one in node.span.sources:
                found.setdefault(one.layer, (one.op, one.frontend))
        return found

    def where(self, layers: Sequence[str]) -> tuple[Where, ...]:
        """Returns where layers are in the author's source."""
        return tuple(
            Where(layer, *self._ops.get(layer, ("", "")), self._places.get(layer))
            for layer in dict.fromkeys(layers)
        )

    def inputs_of(self, number: int) -> dict[str, Array]:
        """Returns a sample's inputs by name."""
        return dict(zip(self.compiled.input_names, self.samples[number], strict=True))

    def param(self, name: str) -> Var:
        """Returns an input of the main function."""
        return next(p for p in self.module.main.params if p.name == name)


def layers_of(nodes: Sequence[Expr]) -> tuple[str, ...]:
    """Returns the layers that nodes serve, each once."""
    return tuple(dict.fromkeys(layer for node in nodes for layer in node.span.layers))
