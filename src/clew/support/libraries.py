"""Libraries that clew can do without, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from clew.support.errors import ClewError


def optional_library(module: str, absent: ClewError) -> Any:
    """Returns a module of an optional library.

    Errors: `absent` where it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # That it is absent is all there is to say; of one that is there and broken, the cause is.
        raise absent from None if error.name == module.partition(".")[0] else error
