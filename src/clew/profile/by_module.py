"""Sums the times of layers by the user's modules, which are nested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.profile.rows import LayerProfile, ModuleProfile
from clew.trace.places import CodePlace


@dataclass
class _Sum:
    kind: str = ""
    ns: float = 0.0
    layers: dict[str, None] = field(default_factory=dict)
    kernels: dict[str, None] = field(default_factory=dict)


def module_profiles(
    layers: Iterable[LayerProfile], places: Sequence[CodePlace], wall_ns: float
) -> tuple[ModuleProfile, ...]:
    """Returns the modules that have timed layers, in the model's order, each followed by those
    inside it. There are none if no place names a module.
    """
    sums: dict[str, _Sum] = {}
    timed = {layer.layer: layer for layer in layers}
    for place in places:
        path, layer = _without_calls(place.module), timed.get(place.layer)
        if layer is None:
            continue
        for outer in _outwards(path):
            found = sums.setdefault(outer, _Sum())
            found.ns += layer.ns
            found.layers[layer.layer] = None
            found.kernels.update(dict.fromkeys(layer.kernels))
        sums[path].kind = place.kind.rpartition(".")[2] or sums[path].kind
    if not any(sums):
        return ()
    first = {path: number for number, path in enumerate(sums)}
    paths = sorted(sums, key=lambda path: [first[outer] for outer in _outwards(path)])
    return tuple(_profile(path, sums[path], wall_ns) for path in paths)


def _profile(path: str, found: _Sum, wall_ns: float) -> ModuleProfile:
    share = found.ns / wall_ns
    return ModuleProfile(
        path, found.kind, found.ns, share, tuple(found.layers), tuple(found.kernels)
    )


def _without_calls(path: str) -> str:
    """Returns a module's path without numbers of calls: `blocks.0` for `blocks@1.0`."""
    return ".".join(part.partition("@")[0] for part in path.split("."))


def _outwards(path: str) -> Iterator[str]:
    """Yields the paths of the modules around a module, the whole model first, then its own."""
    yield ""
    for place, letter in enumerate(path):
        if letter == ".":
            yield path[:place]
    if path:
        yield path
