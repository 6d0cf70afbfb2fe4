"""Compiles regions by their backends, and loads them from records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clew.backends.backend import CPU, Backend, CompiledRegion
from clew.backends.registry import backend_names, backends_of
from clew.ir.expr import Call, Function
from clew.ir.structural import structural_hash
from clew.ir.types import TensorType, leaves, to_numpy
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.passes.placement.claims import covers, with_composites
from clew.runtime.cache import Cache
from clew.runtime.limits import Hung, within
from clew.runtime.regions import RegionCall, ValueType
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import PASSED_ON, ClewError, CompileError, UnsupportedError, locate
from clew.version import package_version

_LAYERS_SHOWN = 3


class Regions:
    """Compiles the regions of one build, equal ones once, through the cache if their backend makes
    records. `names` has the names of the regions by the ids of their calls.

    `standby` makes a function that runs a region on the CPU. With it, a region that its backend
    fails to compile goes to the next backend that takes all of it, or to the CPU; `moved` has the
    calls of these regions and the reasons. A region that fails in a run goes to the CPU.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        target: Target,
        cache: Cache,
        names: Mapping[int, str] | None = None,
        on_progress: Callable[[str], None] = lambda text: None,
        standby: Callable[[Function], Callable[..., Any]] | None = None,
    ) -> None:
        self._backends = {b.name: b for b in backends}
        self._target = target
        self._cache = cache
        self._names = names or {}
        self._on_progress = on_progress
        self._standby = standby
        self._compiled: dict[str, CompiledRegion] = {}
        self._failed: dict[str, CompileError] = {}
        self.moved: list[tuple[Call, str]] = []
        # The regions of the program, in order: name, backend, call and key.
        self.made: list[tuple[str, str, Call, str]] = []

    def region(self, call: Call) -> RegionCall:
        """Returns the compiled region.

        Errors: C070 if its backend fails to compile it, U040 if there is no such backend.
        """
        function = call.op
        assert isinstance(function, Function)
        layers = ", ".join(layers_of(function)[:_LAYERS_SHOWN])
        backend = self._backends.get(function.backend)
        if backend is None:
            raise UnsupportedError(
                "U040",
                f"the graph has a region for the unknown backend {function.backend}",
                hint="pass it in compile(model, backends=[...])",
                layer=layers,
            )
        name = self._names.get(call.id, call.title)
        with locate(layer=layers):
            if self._standby is None:
                return self._on(backend, function, call, name)
            return self._somewhere(backend, function, call, name)

    def _on(self, backend: Backend, function: Function, call: Call, name: str) -> RegionCall:
        key = self._key(function, backend)
        if key in self._failed:
            raise self._failed[key]
        if key not in self._compiled:
            self._on_progress(f"{name} on {backend.name}")
            try:
                with locate(stage=f"compile on {backend.name}"):
                    stored = self._stored(backend, key)
                    self._compiled[key] = stored or self._fresh(function, backend, key)
            except CompileError as error:
                self._failed[key] = error
                raise
        self.made.append((name, backend.name, call, key))
        standby = self._standby
        return RegionCall(
            backend.name,
            name,
            backend.memory,
            self._compiled[key],
            results_of(function),
            limit_s=None if backend.watch == "never" else backend.limit_s,
            always=backend.watch == "always",
            standby=None if standby is None else lambda: standby(function),
        )

    def _somewhere(self, first: Backend, function: Function, call: Call, name: str) -> RegionCall:
        """Returns the region on its backend, else on the next one that takes it, else on the
        CPU.
        """
        assert self._standby is not None
        reasons: list[str] = []
        order = list(self._backends.values())
        for backend in [first, *order[order.index(first) + 1 :]]:
            if backend is not first and not covers(function, backend):
                continue
            try:
                made = self._on(backend, function, call, name)
            except CompileError as error:
                reasons.append(error.message)
                continue
            self._note_move(call, name, backend.name, reasons)
            return made
        self._note_move(call, name, CPU, reasons)
        self.made.append((name, CPU, call, ""))
        run = self._standby(function)
        return RegionCall(CPU, name, HOST, run, results_of(function))

    def _note_move(self, call: Call, name: str, where: str, reasons: Sequence[str]) -> None:
        if reasons:
            assert isinstance(call.op, Function)
            layers = ", ".join(layers_of(call.op)[:_LAYERS_SHOWN])
            self.moved.append((call, f"{name} ({layers}) runs on {where}: {'; '.join(reasons)}"))

    def _key(self, function: Function, backend: Backend) -> str:
        """Returns the cache key of a region, a hash of all that its compilation depends on."""
        parts = (
            "region",
            package_version(),
            backend.name,
            backend.key,
            self._target.key,
            structural_hash(function),
        )
        return hashlib.blake2b("|".join(parts).encode(), digest_size=20).hexdigest()

    def _stored(self, backend: Backend, key: str) -> CompiledRegion | None:
        record = self._cache.get(key)
        if record is None:
            return None
        try:
            return backend.of_record(record)
        except Exception:  # any exception of a backend's code: compile again
            self._cache.drop(key)
            return None

    def _fresh(self, function: Function, backend: Backend, key: str) -> CompiledRegion:
        region = with_composites(function, backend)
        try:
            if backend.watch == "never":
                made = backend.compile(region, self._target)
            else:
                made = within(backend.limit_s, backend.compile, region, self._target)
            record = backend.to_record(made)
        except Hung:
            raise CompileError(
                "C074",
                f"the backend {backend.name} has not compiled a region after {backend.limit_s:g} s",
                hint=f"compile without {backend.name}, or raise its limit_s",
            ) from None
        except PASSED_ON:
            raise
        except BaseException as error:  # whatever a backend's code raises
            raise CompileError(
                "C070",
                f"the backend {backend.name} failed to compile a region that it took: "
                f"{_message(error)}",
                hint=f"reject its operators in takes, or compile without {backend.name}",
            ) from error
        if not callable(made):
            raise CompileError(
                "C070",
                f"compile of the backend {backend.name} returned a {type(made).__name__}, "
                "which is not callable",
                hint="compile must return a function of the region's buffers",
            )
        if record is not None:
            self._cache.put(key, record)
        return made


def _message(error: BaseException) -> str:
    if isinstance(error, ClewError):
        return f"{error.code} {error.message}"
    return f"{type(error).__name__}: {error}"


def layers_of(region: Function) -> tuple[str, ...]:
    """Returns the model's layers that a region computes, in the order of its operators."""
    calls = (n for n in post_order(region.body) if isinstance(n, Call))
    return tuple(dict.fromkeys(layer for call in calls for layer in call.layers))


def results_of(function: Function) -> list[ValueType]:
    """Returns the types of a region's results."""
    return list(map(value_type, leaves(function.body.type)))


def value_type(type_: Any) -> ValueType:
    """Returns the shape and dtype of a value of static shape."""
    assert isinstance(type_, TensorType)
    return ValueType(type_.concrete, to_numpy(type_.dtype))


def region_record(
    call: RegionCall, backends: Iterable[Backend], layers: Sequence[str]
) -> tuple[str, bytes]:
    """Returns the key of a region's backend, and the region as bytes, for a saved model.

    Errors: C071 if its backend cannot save regions.
    """
    backend = next((b for b in backends if b.name == call.backend), None)
    record = None if backend is None else backend.to_record(call.compiled)
    if backend is None or record is None:
        raise CompileError(
            "C071",
            f"{call.name} runs on the backend {call.backend}, whose regions cannot be saved",
            hint="implement to_record and of_record in the backend",
            layer=", ".join(layers[:_LAYERS_SHOWN]),
        )
    return backend.key, record


class RegionReader:
    """Loads the regions of a saved model with the user's backends. clew's own and registered
    backends need not be given.

    Errors: I350 to I353 and I356 for invalid backends.
    """

    def __init__(self, backends: Iterable[Any], threads: int = 1) -> None:
        self._threads = threads
        self._backends = tuple(b.at_threads(threads) for b in backends_of(backends))

    def _backend(self, name: str) -> Backend | None:
        """Returns the backend of this name; None if there is none.

        Errors: I356 for one of clew's backends whose package is missing.
        """
        found = next((b for b in self._backends if b.name == name), None)
        if found is None and name in backend_names():
            found = backends_of([name])[0].at_threads(self._threads)
            self._backends = (*self._backends, found)
        return found

    def region(
        self,
        step: Mapping[str, Any],
        record: bytes,
        standby: Callable[..., Any] | None = None,
    ) -> RegionCall:
        """Returns the region of a saved step. `standby` runs it on the CPU: always if this is its
        backend, otherwise after a failure.

        Errors: C072 if its backend is missing, has another key, or cannot read the record, or not
        in time.
        """
        name, layers = step["backend"], ", ".join(step["layers"][:_LAYERS_SHOWN])
        types = [ValueType.of_record(t) for t in step["results"]]
        if name == CPU:
            assert standby is not None
            return RegionCall(CPU, step["label"], HOST, standby, types)
        backend = self._backend(name)
        if backend is None or backend.key != step["key"]:
            why = "is missing" if backend is None else f"now has the key {backend.key!r}"
            raise CompileError(
                "C072",
                f"the model runs {step['label']} on the backend {name}, which {why}",
                hint="pass it in load_compiled(path, backends=[...]), or compile the model again",
                layer=layers,
            )
        limit_s = None if backend.watch == "never" else backend.limit_s
        try:
            if limit_s is None:
                compiled = backend.of_record(record)
            else:
                compiled = within(limit_s, backend.of_record, record)
        except Hung:
            raise CompileError(
                "C072",
                f"the backend {name} has not read {step['label']} after {limit_s:g} s",
                hint=f"raise the limit_s of {name}, or compile the model without it",
                layer=layers,
            ) from None
        except PASSED_ON:
            raise
        except BaseException as error:  # whatever a backend's code raises
            raise CompileError(
                "C072",
                f"the backend {name} cannot read {step['label']}: {_message(error)}",
                hint="compile the model and save it again",
                layer=layers,
            ) from error
        return RegionCall(
            name,
            step["label"],
            backend.memory,
            compiled,
            types,
            limit_s=limit_s,
            always=backend.watch == "always",
            standby=None if standby is None else lambda: standby,
        )

    def space(self, name: str) -> MemorySpace:
        """Returns the memory space of this name.

        Errors: C072 if no backend has it.
        """
        for space in (HOST, *(b.memory for b in self._backends)):
            if space.name == name:
                return space
        raise CompileError(
            "C072",
            f"the model uses the memory space {name}, which none of the backends has",
            hint="pass its backend in load_compiled(path, backends=[...])",
        )
