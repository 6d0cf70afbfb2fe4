"""Optional libraries, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from clew.support.errors import InputError


def needed(module: str) -> Any:
    """Returns a module of the extra `predict`.

    Errors: I180 where it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        library = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
        raise InputError(
            "I180", f"{library} is not installed", hint="pip install 'clew[predict]'"
        ) from None
