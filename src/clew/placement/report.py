"""The result of a placement: which backend runs which operators, and the costs of alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.table import Table

from clew.backends.backend import CPU
from clew.passes.placement.rules import Fixed, Key, Rule
from clew.placement.book import keys_as_json, keys_of_json
from clew.placement.costs import Costs
from clew.placement.search import Found
from clew.placement.units import UnitGraph
from clew.support.errors import InputError
from clew.support.near import listed
from clew.support.shown import Shown, counted
from clew.support.tables import as_text, table

SCHEMA: Final = "clew.placement/1"
_LAYERS_SHOWN: Final = 3
_CLOSEST: Final = 5


@dataclass(frozen=True)
class Plan:
    """An assignment of units to backends (`names`), and the median seconds of a call of the whole
    model; or why it failed. The search found a mix (`is_mix`); any other plan is one backend, with
    the CPU for the rest.
    """

    name: str
    names: tuple[str, ...] = field(repr=False)
    seconds: float | None = None
    failure: str = ""
    is_mix: bool = False


@dataclass(frozen=True)
class Alternative:
    """The cost of a region on another backend: the seconds of its work, and those of its borders
    there; or why it cannot run there.
    """

    backend: str
    seconds: float | None
    borders: float = 0.0
    why_not: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.backend}: no, {self.why_not}"
        return f"{self.backend}: {self.seconds * 1e3:.3f} + {self.borders * 1e3:.3f}"


@dataclass(frozen=True)
class Counterfactual:
    """One unit moved alone from its backend to another: the seconds of its work here and there, and
    the additional seconds of borders.
    """

    layers: tuple[str, ...]
    ops: tuple[str, ...]
    here: str
    there: str
    here_seconds: float
    there_seconds: float
    borders: float

    @property
    def change(self) -> float:
        """The additional seconds of the model; negative if it would be faster."""
        return self.there_seconds + self.borders - self.here_seconds


@dataclass(frozen=True)
class PlacedRegion:
    """Neighboring operators on one backend: their layers, the seconds of their work with the basis
    of this cost (docs/placement.md), the seconds of their borders, and the costs on other backends.
    """

    backend: str
    layers: tuple[str, ...]
    ops: tuple[str, ...]
    seconds: float
    borders: float
    basis: str
    others: tuple[Alternative, ...]


@dataclass(frozen=True, repr=False)
class Placement(Shown):
    """Where the operators of a model run (`clew.place`); an argument `place` of `clew.compile`.

    `plans` are those that were measured as a whole, each backend alone among them, and `best` is
    the fastest. `regions` are its regions in the order of the graph, those of the CPU included.
    `expected` is the cost in seconds of the last assignment that the search found, and `gap` is how
    far it may be above the least, relative to that (0 if the search was exact). `closest` are the
    units that would lose least, or gain most, on another backend, each moved alone. `took` is the
    seconds that placement took. `kept` says whether the placement is from the database.
    """

    plans: tuple[Plan, ...]
    best: Plan
    regions: tuple[PlacedRegion, ...]
    expected: float
    gap: float
    units: int
    choices: Mapping[Key, str]
    took: float
    closest: tuple[Counterfactual, ...] = ()
    kept: bool = False

    @property
    def rule(self) -> Rule:
        """The rule for the passes of placement."""
        return Fixed(self.choices)

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends in use besides the CPU, in the order of the graph."""
        return tuple(dict.fromkeys(r.backend for r in self.regions if r.backend != CPU))

    def _about(self) -> str:
        return f"{self.best.name}, {counted(len(self.regions), 'region')}"

    def __str__(self) -> str:
        parts = [as_text(self.measured_table()), self.summary, as_text(self.table())]
        if self.closest:
            parts.append(as_text(self.closest_table()))
        return "\n\n".join(parts)

    @property
    def summary(self) -> str:
        """The size of the problem, the quality of the search, and the time taken, in a sentence."""
        search = "exact" if not self.gap else f"at most {self.gap:.1%} above the least cost"
        return (
            f"{counted(self.units, 'unit')}; the search was {search} and expected "
            f"{self.expected * 1e3:.3f} ms; placement took {self.took:.1f} s"
        )

    def measured_table(self) -> Table:
        """Returns a table of the plans measured as a whole, the fastest first."""
        made = table("as a whole", "ms", "", right=("ms",))
        for plan in sorted(self.plans, key=lambda p: (p.seconds is None, p.seconds)):
            ms = "failed" if plan.seconds is None else f"{plan.seconds * 1e3:.3f}"
            note = "chosen" if plan.name == self.best.name else plan.failure
            made.add_row(plan.name, ms, note)
        return made

    def table(self) -> Table:
        """Returns a table of the regions, with their costs elsewhere, in ms: work + borders."""
        made = table("backend", "ms", "borders", "elsewhere", "layers", right=("ms", "borders"))
        for region in self.regions:
            made.add_row(
                region.backend,
                f"{region.seconds * 1e3:.3f}",
                f"{region.borders * 1e3:.3f}",
                "\n".join(map(str, region.others)),
                listed(region.layers, _LAYERS_SHOWN),
            )
        return made

    def closest_table(self) -> Table:
        """Returns a table of the units that come closest to being faster on another backend."""
        made = table(
            "if moved alone", "to", "ms here", "ms there", "borders", "change, ms",
            right=("ms here", "ms there", "borders", "change, ms"),
        )  # fmt: skip
        for c in self.closest:
            name = f"{listed(c.ops, _LAYERS_SHOWN)} of {listed(c.layers, 1)}"
            seconds = (c.here_seconds, c.there_seconds, c.borders)
            cells = [f"{s * 1e3:.3f}" for s in seconds]
            made.add_row(name, c.there, *cells, f"{c.change * 1e3:+.3f}")
        return made

    def to_json(self) -> dict[str, Any]:
        """Returns the placement as JSON values, for `of_json`."""
        return {
            "schema": SCHEMA,
            "plans": [asdict(p) for p in self.plans],
            "best": asdict(self.best),
            "regions": [asdict(r) for r in self.regions],
            "expected": self.expected,
            "gap": self.gap,
            "units": self.units,
            "choices": keys_as_json(self.choices),
            "took": self.took,
            "closest": [asdict(c) for c in self.closest],
        }

    @staticmethod
    def of_json(found: Mapping[str, Any]) -> Placement:
        """Returns the placement from `to_json`.

        Errors: I381 for other values.
        """
        try:
            return Placement(
                tuple(map(_plan, found["plans"])),
                _plan(found["best"]),
                tuple(map(_region, found["regions"])),
                float(found["expected"]),
                float(found["gap"]),
                int(found["units"]),
                keys_of_json(found["choices"]),
                float(found["took"]),
                tuple(map(_counterfactual, found["closest"])),
                kept=True,
            )
        except (KeyError, TypeError, ValueError):
            raise InputError("I381", "a kept placement is damaged") from None


def _plan(found: Mapping[str, Any]) -> Plan:
    return Plan(**{**found, "names": tuple(found["names"])})


def _counterfactual(found: Mapping[str, Any]) -> Counterfactual:
    return Counterfactual(**{**found, **{k: tuple(found[k]) for k in ("layers", "ops")}})


def _region(found: Mapping[str, Any]) -> PlacedRegion:
    others = tuple(Alternative(**a) for a in found["others"])
    names = {k: tuple(found[k]) for k in ("layers", "ops")}
    return PlacedRegion(**{**found, **names, "others": others})


def described(
    graph: UnitGraph,
    costs: Costs,
    plans: Sequence[Plan],
    best: Plan,
    search: Found,
    choices: Mapping[Key, str],
    took: float,
) -> Placement:
    """Returns the placement of the best plan, with the cost of each of its regions elsewhere."""
    parts = parts_of(graph, best.names)
    regions = tuple(_described(graph, costs, best.names, part) for part in parts)
    return Placement(
        tuple(plans), best, regions, search.cost, search.gap, len(graph.units), choices, took,
        _closest(graph, costs, best.names),
    )  # fmt: skip


def _closest(graph: UnitGraph, costs: Costs, names: Sequence[str]) -> tuple[Counterfactual, ...]:
    found = []
    for unit in graph.units:
        own = names[unit.number]
        here = _borders(graph, costs, names, [unit.number], own)
        for name in (CPU, *unit.takers):
            if name == own or not costs.takes(unit, name):
                continue
            there = _borders(graph, costs, names, [unit.number], name)
            found.append(
                Counterfactual(
                    unit.layers,
                    unit.ops,
                    own,
                    name,
                    costs.units[unit.number, own].seconds,
                    costs.units[unit.number, name].seconds,
                    there - here,
                )
            )
    return tuple(sorted(found, key=lambda c: c.change)[:_CLOSEST])


def parts_of(graph: UnitGraph, names: Sequence[str]) -> list[list[int]]:
    """Returns the connected sets of units with one backend, in the order of the graph."""
    parent = list(range(len(names)))

    def root(unit: int) -> int:
        while parent[unit] != unit:
            parent[unit] = unit = parent[parent[unit]]
        return unit

    for edge in graph.edges:
        if edge.start is not None and edge.end is not None and names[edge.start] == names[edge.end]:
            parent[root(edge.end)] = root(edge.start)
    found: dict[int, list[int]] = {}
    for unit in range(len(names)):
        found.setdefault(root(unit), []).append(unit)
    return list(found.values())


def _described(
    graph: UnitGraph, costs: Costs, names: Sequence[str], part: Sequence[int]
) -> PlacedRegion:
    units = [graph.units[n] for n in part]
    own = names[part[0]]
    bases = dict.fromkeys(costs.units[u.number, own].basis for u in units)
    others = []
    for name in (CPU, *(b.name for b in costs.backends)):
        if name == own:
            continue
        lacking = [u for u in units if not costs.takes(u, name)]
        if lacking:
            why = costs.failures.get((lacking[0].number, name), "")
            ops = listed(dict.fromkeys(op for u in lacking for op in u.ops), _LAYERS_SHOWN)
            if not why:
                untaken = any(name != CPU and name not in u.takers for u in lacking)
                why = f"it {'does not take' if untaken else 'was not measured for'} {ops}"
            others.append(Alternative(name, None, why_not=why))
            continue
        seconds = sum(costs.units[u.number, name].seconds for u in units)
        others.append(Alternative(name, seconds, _borders(graph, costs, names, part, name)))
    return PlacedRegion(
        own,
        tuple(dict.fromkeys(la for u in units for la in u.layers)),
        tuple(op for u in units for op in u.ops),
        sum(costs.units[u.number, own].seconds for u in units),
        _borders(graph, costs, names, part, own),
        ", ".join(bases),
        tuple(others),
    )


def _borders(
    graph: UnitGraph, costs: Costs, names: Sequence[str], part: Sequence[int], name: str
) -> float:
    """Returns the seconds of a region's borders and of entering it, if it ran on a backend."""
    inside = set(part)
    joined = False
    total = 0.0
    for edge in graph.edges:
        if (edge.start in inside) == (edge.end in inside):
            continue
        start = CPU if edge.start is None else names[edge.start]
        end = CPU if edge.end is None else names[edge.end]
        if edge.start in inside:
            start = name
        else:
            end = name
        joined = joined or (start == end and name != CPU)
        total += costs.border_seconds(edge, start, end)
    return total if joined else total + costs.starts.get(name, 0.0)
