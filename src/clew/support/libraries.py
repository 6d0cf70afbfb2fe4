"""Optional libraries, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from clew.support.errors import ClewError


def optional_library(module: str, absent: ClewError) -> Any:
    """Returns a module of an optional library.

    Errors: `absent` if the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # `absent` fully describes a missing library; for a broken one, raise the cause.
        raise absent from None if error.name == module.partition(".")[0] else error
