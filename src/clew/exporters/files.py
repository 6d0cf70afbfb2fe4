"""Formats that modules of any origin are written in, by the names of formats in `frontends`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from clew.exporters import onnx
from clew.ir.module import Module

Save: TypeAlias = Callable[[Module, Path, Mapping[str, str]], None]
"""Writes a module to a file, with notes by key."""

SAVES: Final[Mapping[str, Save]] = {"onnx": onnx.save}
