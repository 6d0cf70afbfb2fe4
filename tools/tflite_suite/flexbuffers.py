"""Writes options of custom operators as FlexBuffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatbuffers import flexbuffers


def flexible(options: Mapping[str, Any]) -> bytes:
    """Returns options as a map."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in options.items():
            if isinstance(value, bool):
                builder.Bool(name, value)
            elif isinstance(value, int):
                builder.Int(name, value)
            elif isinstance(value, float):
                builder.Float(name, value)
            elif isinstance(value, str):
                builder.String(name, value)
            else:
                builder.TypedVectorFromElements(name, list(value))
    return bytes(builder.Finish())
