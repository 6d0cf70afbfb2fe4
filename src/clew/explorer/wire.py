"""Objects of the schema as JSON text. Infinities and NaN, which JSON lacks, become null."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any


def to_json(value: Any) -> bytes:
    """Returns an object of the schema as compact UTF-8 JSON."""
    plain = to_plain(value)
    try:
        text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(plain), separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def to_plain(value: Any) -> Any:
    """Returns an object of the schema as dictionaries and lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list) and value and not isinstance(value[0], (str, int, float)):
        return [to_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value
