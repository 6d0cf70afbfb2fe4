"""The model's loops: the layers and kernels of each, and its trip count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.explorer import schema
from clew.explorer.session import Session
from clew.ir.expr import While
from clew.ir.loops import Around, loops_around


def loops(session: Session) -> list[schema.Loop]:
    """Returns the loops by their layers, outer loops before inner ones; for `Session.once`.

    A layer that a pass turned into a loop (LSTM) is included. Layers of a body are those that the
    import found there.
    """
    chains: dict[int, tuple[int, ...]] = {}
    iterations: dict[int, int | None] = {}
    layers: dict[int, dict[int, None]] = {}
    for stage, record in enumerate(session.trace.stages):
        if stage and not record.changed:
            continue
        nodes = session.trace.nodes(stage)
        for node, around in loops_around(record.module.main).items():
            if node not in nodes:
                continue
            found = nodes[node]
            if isinstance(found, While):
                for place in _places(session, found):
                    chains.setdefault(place, _chain(session, around, place))
                    if isinstance(found.trips, int) or place not in iterations:
                        iterations[place] = found.trips if isinstance(found.trips, int) else None
            held = (session.layers[name] for name in found.span.layers if name in session.layers)
            chain = _chain(session, around)
            for layer in held if not stage else ():
                for loop in chain:
                    if layer not in chain[: chain.index(loop) + 1]:
                        layers.setdefault(loop, {})[layer] = None
    kernels = _kernels(session)
    order = sorted(chains, key=lambda place: (len(chains[place]), place))
    at = {place: n for n, place in enumerate(order)}
    return [
        schema.Loop(
            layer=place,
            parent=at.get(chains[place][-1], -1) if chains[place] else -1,
            iterations=iterations[place],
            layers=sorted(layers.get(place, ())),
            kernels=kernels.get(place, []),
        )
        for place in order
    ]


def loops_of_call(session: Session, call: int) -> Iterator[schema.Loop]:
    """Yields the loops around the call of a kernel in the last stage, outermost first."""
    known = {loop.layer: loop for loop in session.once(loops)}
    for place in _chain(session, session.once(_around_last).get(call, ())):
        if place in known:
            yield known[place]


def _around_last(session: Session) -> dict[int, Around]:
    return loops_around(session.trace.stages[session.trace.last].module.main)


def _kernels(session: Session) -> dict[int, list[int]]:
    """Returns the kernels that run in each loop, by the place of the loop's layer."""
    around = session.once(_around_last)
    found: dict[int, list[int]] = {}
    for number, kernel in enumerate(session.kernels):
        for place in _chain(session, around.get(kernel.call, ())):
            found.setdefault(place, []).append(number)
    return found


def _chain(session: Session, around: Iterable[While], without: int = -1) -> tuple[int, ...]:
    """Returns the layers of the loops around a node, outermost first, each once."""
    places = (place for loop in around for place in _places(session, loop))
    return tuple(dict.fromkeys(place for place in places if place != without))


def _places(session: Session, loop: While) -> list[int]:
    """Returns the layer of a loop; none if it has several, or none."""
    found = [session.layers[name] for name in loop.span.layers if name in session.layers]
    return found if len(found) == 1 else []
