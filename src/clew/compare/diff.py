"""`clew.diff`: compares two compiled models, aligned on their layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clew.compare.align import Alignment, align
from clew.compare.differences import layer_diffs
from clew.compare.facts import build_facts, pass_facts
from clew.compare.feeding import Feeds, check_outputs, feeds_of, outputs_of
from clew.compare.reference import reference_of
from clew.compare.report import DiffReport
from clew.compare.rows import Group, LayerDiff, Summary
from clew.compare.state import Side
from clew.compare.times import Times, measure
from clew.compare.values import Numerics, Run, compare_values, output_error
from clew.serving.built_model import BuiltModel
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion


@coded_exhaustion
def diff(
    a: BuiltModel,
    b: BuiltModel,
    inputs: Any = None,
    *,
    time: bool = True,
    numerics: bool = True,
    reference: bool = True,
    rounds: int | None = None,
    bound: float | None = None,
    names: tuple[str, str] = ("A", "B"),
    on_progress: Callable[[str], None] | None = None,
) -> DiffReport:
    """Returns the differences between two compiled models, layer by layer: builds of one model, or
    of two.

    `inputs` are A's, by name, or in order as a tuple or list; B gets them by name, or else by
    position. Without inputs nothing is run, so the report has neither times nor numerics; `time`
    and `numerics` turn off either. With `reference`, both are also compared with f32 at opt level
    0, which requires compiling both models again. `rounds` is the number of turns per build, by
    default as many as fit into a few seconds. The first layer whose error `between.rms` is above
    `bound` is named in the report. `names` are the names of the builds in the report.

    Errors: I160 (inputs that do not match B), I161 (outputs that cannot be compared), I162 (a
    loaded model, which has no trace), I045 (compiled without its trace), and those of running.
    """
    say = on_progress or (lambda text: None)
    for model in (a, b):
        _need_trace(model)
    feeds = feeds_of(a, b, inputs) if inputs is not None and (time or numerics) else None
    outputs = feeds.run() if feeds is not None else None  # also builds models with named sizes
    if feeds is not None and numerics:
        check_outputs(a, b)
    say("aligning layers")
    sides = Side(a), Side(b) if b is not a else Side(a)
    alignment = align(sides[0].layers, sides[1].layers)
    times = measure(sides, feeds.arrays, rounds, say) if feeds is not None and time else None
    say("comparing layers")
    values: dict[str, Numerics] = {}
    references: tuple[Run | None, Run | None] = (None, None)
    if feeds is not None and numerics:
        if reference:
            references = _references(sides, feeds, say)
        say("comparing values")
        only = alignment.only_a, alignment.only_b
        one, other = map(Run, sides, feeds.arrays, only)
        values = compare_values(one, other, references, alignment.matches)
    groups = groups_of(*sides, alignment, times)
    layers = layer_diffs(sides, alignment, groups, times, values)
    summary = _summary(sides, names, alignment, layers, times, values)
    if bound is not None:
        beyond = [n for n, v in values.items() if v.at == n and v.between.rms > bound]
        summary = replace(summary, bound=bound, first_beyond=next(iter(beyond), None))
    if outputs is not None and numerics:
        summary = _with_errors(summary, outputs, references)
    return DiffReport(summary, layers, groups)


def _need_trace(model: Any) -> None:
    """Checks that a model has stages to align.

    Errors: I162.
    """
    if not isinstance(model, BuiltModel):
        raise InputError(
            "I162",
            f"{type(model).__name__} has no trace to align layers",
            hint="compile the model's own file with clew.compile",
        )


def _references(
    sides: Sequence[Side], feeds: Feeds, say: Callable[[str], None]
) -> tuple[Run | None, Run | None]:
    """Returns the models at opt level 0 in f32; a build that already is that serves as its own."""
    found: list[Run] = []
    for n, (side, arrays) in enumerate(zip(sides, feeds.arrays, strict=True)):
        model = side.compiled
        if n and model.module is sides[0].compiled.module:
            found.append(found[0])
            continue
        say(f"compiling the reference of {'AB'[n]}")
        exact = reference_of(model)
        if exact is model:
            found.append(Run(side, arrays))
            continue
        exact.run_checked(list(arrays))
        found.append(Run(Side(exact), arrays))
    return found[0], found[1]


def _summary(
    sides: tuple[Side, Side],
    names: tuple[str, str],
    alignment: Alignment,
    layers: Sequence[LayerDiff],
    times: Times | None,
    values: Mapping[str, Numerics],
) -> Summary:
    rises = tuple(name for name, found in values.items() if found.rises and found.at == name)
    return Summary(
        a=build_facts(sides[0], names[0]),
        b=build_facts(sides[1], names[1]),
        paired=dict(Counter(m.how for m in alignment.matches)),
        only_a=alignment.only_a,
        only_b=alignment.only_b,
        differs=dict(Counter(kind for layer in layers for kind in layer.differs)),
        passes=pass_facts(sides, alignment),
        time=times.whole if times else None,
        rounds=times.rounds if times else 0,
        first_rise=rises[0] if rises else None,
        rises=rises,
        notes=tuple(dict.fromkeys((*times.a.notes, *times.b.notes))) if times else (),
    )


def _with_errors(
    summary: Summary,
    outputs: Sequence[Sequence[Any]],
    references: Sequence[Run | None],
) -> Summary:
    """Returns the summary with the errors of the models' outputs."""
    exact = [None if r is None else outputs_of(r.side.compiled, r.arrays) for r in references]
    own = [
        None if expected is None else output_error(given, expected)
        for given, expected in zip(outputs, exact, strict=True)
    ]
    return replace(
        summary,
        a=replace(summary.a, error=own[0]),
        b=replace(summary.b, error=own[1]),
        error=output_error(outputs[1], outputs[0]),
    )


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
