"""The smallest sets of layers whose kernels can be compared as a whole."""

from __future__ import annotations

from clew.compare.align import Alignment
from clew.compare.rows import Group
from clew.compare.state import Side
from clew.compare.times import Times


def groups_of(a: Side, b: Side, alignment: Alignment, times: Times | None) -> tuple[Group, ...]:
    """Returns the groups in the order of their first layers. A layer only in B is named `B:name`;
    layers without kernels are in no group.
    """
    partner = {m.b: m.a for m in alignment.matches}
    above: dict[str, str] = {}

    def root(name: str) -> str:
        above.setdefault(name, name)
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    used: list[tuple[int, str, str]] = []
    for side, number in ((a, 0), (b, 1)):
        for kernel, layers in side.members.items():
            names = [n if not number else partner.get(n, f"B:{n}") for n in layers]
            for name in names:
                above[root(name)] = root(names[0])
            if names:
                used.append((number, kernel, names[0]))
    members: dict[str, list[str]] = {}
    for name in [*a.layers, *(f"B:{n}" for n in b.layers if n not in partner)]:
        if name in above:
            members.setdefault(root(name), []).append(name)
    kernels: dict[str, tuple[list[str], list[str]]] = {r: ([], []) for r in members}
    for number, kernel, name in used:
        kernels[root(name)][number].append(kernel)
    return tuple(
        Group(
            tuple(layers),
            tuple(kernels[r][0]),
            tuple(kernels[r][1]),
            times.of_kernels(*kernels[r]) if times else None,
        )
        for r, layers in members.items()
    )
