"""Reads values of layers in a run, in the layers' own layouts and dtypes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from clew.build.observe import Iterations, node_values
from clew.build.relayout import relayout
from clew.ir.expr import Constant, While
from clew.ir.loops import in_branches, loops_around
from clew.ir.types import TensorType, TupleType, Type, to_numpy
from clew.serving.built_model import BuiltModel
from clew.support.errors import Hint, InputError
from clew.support.near import did_you_mean, listed
from clew.support.shown import Shown, counted
from clew.tap.force import Broken, Forced, break_fusions
from clew.tap.where import Refusal, State, Whereabouts
from clew.trace.values import LayerValue

_GLOB: Final = frozenset("*?[")
# The number of builds with broken fusions kept for later calls.
_KEPT_BUILDS: Final = 8
Key = tuple[str, int]


@dataclass(frozen=True, repr=False)
class Taps(Mapping[str, Any], Shown):
    """Values of layers by name; a layer's second result is `name:1`, and so on.

    `refused` has the values that are not in memory, of layers matched by a pattern. `forced`
    describes the broken fusions, if requested.
    """

    values_by_name: Mapping[str, Any]
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    forced: Forced | None = None

    def _about(self) -> str:
        refused = f", {len(self.refused)} not in memory" if self.refused else ""
        return f"of {counted(len(self), 'value')}: {listed(self, 3)}{refused}"

    def __str__(self) -> str:
        lines = [f"{name}: {_described(value)}" for name, value in self.items()]
        return "\n".join([*lines, *map(str, self.refused.values())])

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


class _Session:
    """Data computed once per build: the places of values, and builds with broken fusions."""

    def __init__(self, compiled: BuiltModel) -> None:
        self.build = compiled.build
        self.where = Whereabouts(self.build, compiled.trace)
        self.broken: dict[tuple[Key, ...], Broken] = {}


_sessions: Final[WeakKeyDictionary[BuiltModel, _Session]] = WeakKeyDictionary()


def _session(compiled: BuiltModel) -> _Session:
    """Returns the session of a model's last build."""
    found = _sessions.get(compiled)
    if found is None or found.build is not compiled.build:
        found = _sessions[compiled] = _Session(compiled)
    return found


def tap_states(compiled: BuiltModel) -> dict[str, tuple[State, str]]:
    """Returns the state of each result of each layer of the last build, and why it is not in
    memory. A layer's second result is `name:1`, and so on.

    Errors: I044 and I045 (see `BuiltModel.trace`).
    """
    refused = refusals(compiled)
    return {
        name: (State.MEMORY, "") if refusal is None else (refusal.state, refusal.reason)
        for name, refusal in refused.items()
    }


def refusals(compiled: BuiltModel) -> dict[str, Refusal | None]:
    """Returns, for each result of each layer of the last build, why it cannot be read; None if it
    can. A layer's second result is `name:1`, and so on.

    Errors: I044 and I045 (see `BuiltModel.trace`).
    """
    where = _session(compiled).where
    found = {}
    for layer, outputs in where.outputs.items():
        for output in outputs or [0]:
            value = where.values.get((layer, output))
            held = value is not None and where.state(value) is State.MEMORY
            found[_label((layer, output))] = None if held else where.refusal(layer, output)
    return found


def tap(
    compiled: BuiltModel,
    layers: str | Sequence[str],
    inputs: Sequence[Any],
    *,
    output: int | None = None,
    force: bool = False,
    iterations: bool = False,
) -> Any:
    """Returns values of layers in a run of the last build with these inputs, which have been
    checked.

    See `BuiltModel.tap`, also for the errors.
    """
    names = [layers] if isinstance(layers, str) else list(layers)
    session = _session(compiled)
    where = session.where
    wanted = _wanted(where, names, output)
    states = {k: where.state(where.values[k]) if k in where.values else State.GONE for k in wanted}
    inside = tuple(k for k, state in states.items() if state is State.FUSED and force)
    refused = {
        k: where.refusal(*k)
        for k, state in states.items()
        if state is not State.MEMORY and k not in inside
    }
    _raise_for([r for k, r in refused.items() if wanted[k]], force)
    held = [k for k, s in states.items() if s is State.MEMORY]
    found = _stacks(_read(where, held, inputs, {}, iterations=iterations))
    broken = None
    if inside:
        broken = session.broken.get(inside)
        if broken is None:
            values = [where.values[k] for k in inside]
            broken = break_fusions(compiled, where, values)
            while len(session.broken) >= _KEPT_BUILDS:
                session.broken.pop(next(iter(session.broken)))
            session.broken[inside] = broken
        read = _read(where, inside, inputs, broken.values, broken.where, iterations=iterations)
        found |= _stacks(read)
    for key in states:
        if key not in found and key not in refused:
            refused[key] = Refusal(*key, State.IDLE, "it did not run")
    _raise_for([r for k, r in refused.items() if wanted[k]], force)
    if isinstance(layers, str) and not _GLOB & set(layers):
        values_of_one = [found[k] for k in wanted]
        return values_of_one[0] if len(values_of_one) == 1 else tuple(values_of_one)
    forced = broken.forced if broken is not None else Forced((), (), len(session.build.uses))
    return Taps(
        {_label(k): found[k] for k in wanted if k in found},
        {_label(k): r for k, r in refused.items()},
        forced if force else None,
    )


@dataclass(frozen=True)
class IterationValues:
    """Values of a layer in loops in some iterations of a run: `places` has the iterations' numbers,
    from 0.

    `total` counts its iterations, over all entries of inner loops; `loops` are the loops around it,
    outermost first. In a branch (`in_branch`), only iterations that took the branch count. A layer
    outside loops has one value, and `total` is 0.
    """

    values: tuple[Any, ...]
    places: tuple[int, ...]
    total: int
    loops: tuple[While, ...] = ()
    in_branch: bool = False


def tap_iterations(
    compiled: BuiltModel,
    keys: Sequence[Key],
    inputs: Sequence[Any],
    wanted: Collection[int],
) -> dict[Key, IterationValues]:
    """Returns values of layers' results in the wanted iterations, and in the last one.

    No others are kept, so a long loop needs memory only for the wanted iterations. `inputs` have
    been checked. Layers that did not run are omitted.

    Errors: I070, I150, I151, I153 (see `BuiltModel.tap`), and those of a run.
    """
    where = _session(compiled).where
    for key in keys:
        _wanted(where, [key[0]], key[1])
        known = where.values.get(key)
        if known is None or where.state(known) is not State.MEMORY:
            _raise_for([where.refusal(*key)], force=False)
    found = {}
    around, branches = loops_around(where.main), in_branches(where.main)
    for key, value in _read(where, keys, inputs, {}, iterations=wanted).items():
        if not isinstance(value, Iterations):
            found[key] = IterationValues((value,), (), 0)
            continue
        node = where.node_of(where.values[key])
        assert node is not None
        found[key] = IterationValues(
            tuple(value),
            tuple(value.places),
            value.total,
            around.get(node, ()),
            node in branches,
        )
    return found


def results_of(compiled: BuiltModel) -> dict[str, list[int]]:
    """Returns, for each layer of the last build, the numbers of its results."""
    return _session(compiled).where.outputs


def loops_in_memory(compiled: BuiltModel) -> dict[Key, tuple[tuple[While, ...], Type]]:
    """Returns, for the results of layers in loops that are in memory in each iteration, the
    enclosing loops, outermost first, and the type of the value in memory.
    """
    where = _session(compiled).where
    around = loops_around(where.main)
    nodes = where.trace.nodes(where.trace.last)
    found = {}
    for key, value in where.values.items():
        node = where.node_of(value)
        if node is not None and around.get(node):
            found[key] = around[node], nodes[node].type
    return found


def _label(key: Key) -> str:
    return key[0] if not key[1] else f"{key[0]}:{key[1]}"


def _wanted(where: Whereabouts, names: Sequence[str], output: int | None) -> dict[Key, bool]:
    """Returns the results selected by names and patterns, and whether each was given by its exact
    name.

    Errors: I070 if no layer has a name, I152 if a pattern matches none, I153 for a result that a
    layer lacks.
    """
    known = where.outputs
    found: dict[Key, bool] = {}
    for given in names:
        name, which = _named_result(given, known, output)
        exact = name in known or not _GLOB & set(name)
        layers = [where.trace.need_layer(name)] if exact else _fitting(name, known)
        for layer in layers:
            numbers = known[layer] or [0]
            if which is not None and which not in numbers and exact:
                raise InputError(
                    "I153",
                    f"the layer {layer!r} has no result {which}",
                    hint=f"it has {', '.join(map(str, numbers))}",
                )
            for number in numbers:
                if which in (None, number):
                    key = layer, number
                    found[key] = found.get(key, False) or exact
    return found


def _named_result(
    name: str, layers: Mapping[str, object], output: int | None
) -> tuple[str, int | None]:
    """Returns the layer and the result meant by a name such as `split:1`."""
    layer, _, number = name.rpartition(":")
    if name not in layers and layer in layers and number.isdecimal():
        return layer, int(number)
    return name, output


def _fitting(pattern: str, layers: Iterable[str]) -> list[str]:
    """Returns the layers matched by a pattern.

    Errors: I152 if it matches none.
    """
    found = [layer for layer in layers if fnmatchcase(layer, pattern)]
    if not found:
        raise InputError(
            "I152",
            f"no layer matches {pattern!r}",
            hint=did_you_mean(pattern, layers, "layers"),
        )
    return found


def _region_hint(backend: str) -> Hint:
    """Returns how to get at a value that only another backend has."""
    how = f"only {backend} has it: place layers so that a region ends there"
    return Hint(
        f"{how} (place={{backend: layers}}), or compile without {backend}",
        cli=f"{how} (--place BACKEND=LAYER,...), or compile without {backend}",
        page=f"{how}, or make a build without {backend}",
    )


def _raise_for(refused: Sequence[Refusal], force: bool) -> None:
    """Raises an error for values requested by name that cannot be read.

    Errors: I150, I151, I155.
    """
    if not refused:
        return
    first = refused[0]
    others = [r.layer for r in refused[1:4]]
    why = f"{first.reason}{first.nearest}" + (f" (nor {', '.join(others)})" if others else "")
    if first.state is State.IDLE:
        hint = "these inputs do not enter the branch or loop that it is in"
        raise InputError("I155", f"{first.layer} has no value: {why}", hint=hint)
    if first.backend:
        hint = _region_hint(first.backend)
        raise InputError("I150", f"the value of {first.layer} is not in memory: {why}", hint=hint)
    if first.state is State.FUSED:
        hint = Hint(
            "force=True breaks only that fusion",
            cli="--force breaks only that fusion",
            page="clew tap --force reads it: it breaks only this fusion",
        )
        raise InputError("I150", f"the value of {first.layer} is not in memory: {why}", hint=hint)
    python, cli = "a lower opt_level keeps more values", "a lower --opt-level keeps more values"
    page = "a build with a lower optimization level keeps more values"
    name = first.pass_name
    if name not in ("", "import"):
        python = f"compile with passes=clew.Passes(disabled=[{name!r}]), or a lower opt_level"
        cli = f"compile with --disabled {name}, or a lower --opt-level"
        page = f"make a build without {name}, or with a lower optimization level"
    if force:
        python, cli = f"force only breaks fusions; {python}", f"--force only breaks fusions; {cli}"
    what = f"the value of {first.layer} is no longer computed: {why}"
    raise InputError("I151", what, hint=Hint(python, cli=cli, page=page))


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


# --- reading ---


def _read(
    where: Whereabouts,
    keys: Sequence[Key],
    inputs: Sequence[Any],
    instead: Mapping[Key, LayerValue],
    there: Whereabouts | None = None,
    *,
    iterations: bool | Collection[int],
) -> dict[Key, Any]:
    """Returns the values that are in memory in a run, in the layers' own layouts and dtypes.

    `instead` and `there` give their places in another build of the same model. With `iterations`,
    values in loops are `Iterations`.
    """
    source = there or where
    nodes = source.trace.nodes(source.trace.last)
    ids = {k: source.node_of(instead.get(k, where.values[k])) for k in keys}
    asked = {n for n in ids.values() if n is not None}
    held = node_values(source.build, inputs, asked, iterations=iterations)
    found = {}
    for key, number in ids.items():
        assert number is not None, f"the value of {key} is in no node outside kernels"
        node = nodes[number]
        if isinstance(node, Constant):
            value: Any = node.data
        elif number in held:
            value = held[number]
        else:
            continue  # in a branch or loop that did not run
        first = where.values[key]
        target = where.trace.nodes(0)[first.first.node].type
        shape = where.logical_shape(first)
        if isinstance(value, Iterations):
            found[key] = value.of(_as_layer(v, node.type, target, shape) for v in value)
        else:
            found[key] = _as_layer(value, node.type, target, shape)
    return found


def _stacks(values: Mapping[Key, Any]) -> dict[Key, Any]:
    return {k: _stacked(v) if isinstance(v, Iterations) else v for k, v in values.items()}


def _stacked(rows: list[Any]) -> Any:
    """Returns values of iterations as one array, or as a list if their shapes differ."""
    alike = {row.shape if isinstance(row, np.ndarray) else None for row in rows}
    return np.stack(rows) if len(alike) == 1 and None not in alike else rows


def _as_layer(value: Any, source: Type, target: Type, shape: tuple[int, ...] | None) -> Any:
    """Returns a value in the layout and dtype of a layer. `shape` is the layer's, if known."""
    if isinstance(source, TupleType) and isinstance(target, TupleType):
        fields = zip(value, source.fields, target.fields, strict=True)
        return tuple(_as_layer(v, s, t, None) for v, s, t in fields)
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        return value
    like = value if shape is None else np.broadcast_to(np.empty((), np.int8), shape)
    array = np.asarray(relayout(value, source, target, like))
    dtype = to_numpy(target.dtype)
    return array if array.dtype == dtype else array.astype(dtype)
