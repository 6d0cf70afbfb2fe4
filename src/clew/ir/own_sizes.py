"""The ranges of free dimensions that a module itself has, and its rules on them, independent of
compile options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from clew.ir.module import Module
from clew.ir.size_formulas import is_formula
from clew.ir.size_rules import RELATIONS, Comparison, SizeRule

OWN_SIZES: Final = "sizes"
"""The attribute of a main function that holds ranges: names with their bounds, both included."""
SIZE_RULES: Final = "size_rules"
"""The attribute of a main function that holds rules on sizes."""
Range: TypeAlias = "tuple[int, int | None]"


def own_sizes_attribute(ranges: Mapping[str, Range]) -> tuple[Any, ...]:
    """Returns the attribute for ranges by name; it has a text form."""
    return tuple(
        (name, low) if high is None else (name, low, high) for name, (low, high) in ranges.items()
    )


def own_sizes_of(module: Module) -> Mapping[str, Range]:
    """Returns the ranges of a module by name. Entries of other forms, which text IR may hold, are
    left out.
    """
    found: dict[str, Range] = {}
    entries = module.main.attrs.get(OWN_SIZES, ())
    for entry in entries if isinstance(entries, tuple) else ():
        match entry:
            case (str(name), int(low)) if low >= 0:
                found[name] = low, None
            case (str(name), int(low), int(high)) if 0 <= low <= high:
                found[name] = low, high
    return found


def size_rules_attribute(rules: Iterable[SizeRule]) -> tuple[Any, ...]:
    """Returns the attribute for rules, each comparison once; it has a text form."""
    known: dict[tuple[Comparison, ...], SizeRule] = {}
    for rule in rules:
        known.setdefault(rule.comparisons, rule)
    return tuple((rule.comparisons, rule.layer, rule.code) for rule in known.values())


def size_rules_of(module: Module) -> list[SizeRule]:
    """Returns the rules of a module. Entries of other forms, which text IR may hold, are left
    out.
    """
    entries = module.main.attrs.get(SIZE_RULES, ())
    return list(_read(entries)) if isinstance(entries, tuple) else []


def _read(entries: Iterable[Any]) -> Iterator[SizeRule]:
    for entry in entries:
        match entry:
            case (tuple(comparisons), str(layer), str(code)) if all(map(_compares, comparisons)):
                yield SizeRule(comparisons, layer, code)


def _compares(entry: Any) -> bool:
    match entry:
        case (left, str(how), right):
            return how in RELATIONS and is_formula(left) and is_formula(right)
    return False
