"""Optional libraries, imported where they are used."""

from __future__ import annotations

from typing import Any

from clew.support.errors import InputError
from clew.support.libraries import optional_library


def needed(module: str) -> Any:
    """Returns a module of the extra `predict`.

    Errors: I180 if it is not installed.
    """
    library = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
    absent = InputError("I180", f"{library} is not installed", hint="pip install 'clew[predict]'")
    return optional_library(module, absent)
