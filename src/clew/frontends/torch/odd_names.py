"""Names of modules and weights that are not Python identifiers, in code that torch generates.

torch takes them into its code as they are (`getattr(self, "a"b")`, `self.class`): names with
quotes or newlines, and Python's keywords, give code with an error of syntax.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from keyword import iskeyword

import torch.fx.graph


@contextmanager
def any_names() -> Iterator[None]:
    """A context in which torch's code reads attributes of any name."""
    before = torch.fx.graph._format_target
    torch.fx.graph._format_target = _attribute
    try:
        yield
    finally:
        torch.fx.graph._format_target = before


def _attribute(base: str, target: str) -> str:
    """Returns the code for an attribute of `base`, by its path."""
    for name in target.split("."):
        plain = name.isidentifier() and not iskeyword(name)
        base = f"{base}.{name}" if plain else f"getattr({base}, {name!r})"
    return base
