"""Names of the files in a folder saved by transformers."""

from __future__ import annotations

from typing import Final

CONFIGURATION: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""Which file holds each tensor, if they are several."""
