"""Facts from an operator's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeAlias

from clew.support.dataclass import dataclass

Schema: TypeAlias = Any
"""`onnx.defs.OpSchema`, which the package declares only in part for type checkers."""


@dataclass(frozen=True)
class CustomSchema:
    """The schema of an operator that ONNX does not define; its converter checks the details."""

    domain: str
    since_version: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    min_input: int = 0
    max_input: int = 1 << 30
    max_output: int = 1 << 30
    has_function: bool = False
    has_context_dependent_function: bool = False
