"""Forms regions for other backends in four passes, which have the names that they have in Relay.

```python
steps = clew.partitioning
module = steps.apply(
    module,
    [
        steps.MergeComposite(backends),  # matches of their patterns become composite functions
        steps.AnnotateTarget(backends),  # each call that a backend gets is wrapped and annotated
        steps.MergeCompilerRegions(),  # neighbors of one backend become convex regions
        steps.PartitionGraph(),  # regions become functions that their backends compile
    ],
)
```

`clew.compile(model, backends=[...], place=...)` runs the same passes. `place` is the rule that
assigns operators to backends: `by_layers`, `between`, a function of a call, a `Placement` from
`clew.place`, or `"auto"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from clew.backends.backend import Backend
from clew.ir.module import Module
from clew.machine.target import host
from clew.passes.base import Pass
from clew.passes.manager import PassManager
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.claims import RegionPattern
from clew.passes.placement.merge_compiler_regions import MergeCompilerRegions
from clew.passes.placement.merge_composite import MergeComposite
from clew.passes.placement.partition_graph import PartitionGraph
from clew.passes.placement.rules import FIRST, Between, ByLayers, Chosen, Fixed, Rule
from clew.pipelines import placement as partitioning_passes
from clew.support.errors import InputError
from clew.support.near import did_you_mean

__all__ = [
    "AnnotateTarget",
    "Fixed",
    "MergeCompilerRegions",
    "MergeComposite",
    "PartitionGraph",
    "RegionPattern",
    "Rule",
    "apply",
    "between",
    "by_layers",
    "check_rule",
    "partitioning_passes",
    "rule_of",
]


def apply(module: Module, passes: Sequence[Pass], **options: Any) -> Module:
    """Runs passes on a module and returns the result; the module is verified after each. `options`
    are those of `PassManager`.
    """
    options.setdefault("target", host())
    return PassManager(passes, **options).run(module)


def by_layers(layers: Mapping[str, Sequence[str]]) -> Rule:
    """Returns the rule that gives each backend, by name, the layers of these names or globs."""
    return ByLayers({b: tuple([n] if isinstance(n, str) else n) for b, n in layers.items()})


def between(backend: str, start: str | Sequence[str] = (), end: str | Sequence[str] = ()) -> Rule:
    """Returns the rule that gives a backend the layers on paths from `start` to `end`, both
    included. Without an end, these are all that depend on the start; without a start, all that the
    end needs.
    """
    return Between(backend, _names(start), _names(end))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _are_names(given: Any) -> bool:
    several = isinstance(given, Iterable) and all(isinstance(name, str) for name in given)
    return several and not isinstance(given, Iterator)  # it would be empty by now


def rule_of(place: Any) -> Rule:
    """Returns the rule of an argument `place` of `clew.compile`: None or "first" (backends in
    their order), a mapping from backends to layers, a function of a call that returns a backend's
    name or None, or a rule.

    Errors: I357 for anything else.
    """
    rule = getattr(place, "rule", place)
    if rule is None or (isinstance(rule, str) and rule == "first"):
        return FIRST
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, Mapping) and all(map(_are_names, [[*rule], *rule.values()])):
        return by_layers(rule)
    if isinstance(rule, Callable):  # type: ignore[arg-type]
        return Chosen(rule)
    raise InputError(
        "I357",
        f"place={place!r:.80} does not assign operators to backends",
        hint='pass "first", "auto", a mapping from backends to layers, a function, a rule, or a '
        "result of clew.place",
    )


def check_rule(rule: Rule, backends: Sequence[Backend]) -> None:
    """Errors: I357 for a rule that names a backend that is not among these."""
    known = [b.name for b in backends]
    unknown = next((name for name in rule.backends if name not in known), None)
    if unknown is not None:
        raise InputError(
            "I357",
            f"place names the backend {unknown}, which backends= lacks",
            hint=did_you_mean(unknown, known, "backends"),
        )
