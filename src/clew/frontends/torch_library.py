"""Imports torch, which is optional, for the frontend that needs it.

Errors: I415 if it is not installed.
"""

from __future__ import annotations

from typing import Any, Final

from clew.support.errors import InputError
from clew.support.libraries import optional_library

torch: Final[Any] = optional_library(
    "torch", InputError("I415", "torch is not installed", hint="pip install 'clew[torch]'")
)
