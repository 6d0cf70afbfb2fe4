"""Checks of single options: each returns the value to keep, or raises the coded error."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final

from clew.backends.option_fields import checked_bool, checked_list, wrong_value
from clew.support.budgets import Budgets
from clew.support.errors import InputError
from clew.support.links import check_links

OPT_LEVELS: Final = (0, 1, 2, 3)
PRECISIONS: Final = ("f32", "bf16", "f16", "auto")
CACHE_DTYPES: Final = ("f32", "bf16", "f16", "int8")


def check_opt_level(level: Any) -> int:
    """Errors: I011 for a level that does not exist."""
    if isinstance(level, bool) or not isinstance(level, Integral) or level not in OPT_LEVELS:
        raise InputError("I011", f"opt_level is {level!r:.80}", hint="it is 0, 1, 2 or 3")
    return int(level)


def check_precision(precision: Any) -> str:
    """Errors: I013 for a precision that does not exist."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError("I013", f"no precision {precision!r:.80}", hint=f"it is one of {known}")
    return str(precision)


def check_cache_dtype(dtype: Any) -> str | None:
    """Errors: I013 for a dtype that caches cannot have."""
    if dtype is not None and (not isinstance(dtype, str) or dtype not in CACHE_DTYPES):
        known = ", ".join(CACHE_DTYPES)
        raise InputError("I013", f"no cache_dtype {dtype!r:.80}", hint=f"it is one of {known}")
    return dtype


def checked_target(target: Any) -> Any:
    """Errors: I010 for other values; `target_of` knows the names."""
    if isinstance(target, str) or hasattr(target, "key"):
        return target
    raise InputError(
        "I010", f"no target {target!r:.80}", hint="it is a name, as in clew targets, or a Target"
    )


def checked_threads(threads: Any) -> int | None:
    """Errors: I012 if it is not a positive number; `thread_count` knows the largest."""
    if threads is None:
        return None
    if isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 1:
        raise InputError(
            "I012", f"threads is {threads!r:.80}", hint="use a positive number of threads"
        )
    return int(threads)


def checked_inputs(inputs: Any) -> dict[str, Any] | None:
    """Returns a copy, with shapes as tuples; the importer checks the shapes."""
    if inputs is None:
        return None
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs):
        hint = "it has a shape for each name, as in inputs={'x': (1, 3, 224, 224)}"
        raise wrong_value("inputs", inputs, hint)
    return {n: tuple(v) if isinstance(v, list) else v for n, v in inputs.items()} or None


def checked_passes(passes: Any) -> tuple[Any, ...] | None:
    """Errors: I015 for elements that are no passes."""
    if passes is None:
        return None
    found = checked_list("passes", passes)
    for one in found:
        if not (hasattr(one, "name") and hasattr(one, "run")):
            raise wrong_value("passes", passes, f"it is a list of passes, and {one!r:.80} is none")
    return found


def checked_tuned(tuned: Any) -> str | None:
    """Returns the path as text. Errors: I015."""
    path = os.fspath(tuned) if isinstance(tuned, (str, os.PathLike)) else tuned
    if path is not None and not isinstance(path, str):
        raise wrong_value("tuned", tuned, "it is a file, 'auto', or None")
    return path


def checked_on_progress(called: Any) -> Any:
    """Errors: I015."""
    if called is None or callable(called):
        return called
    raise wrong_value("on_progress", called, "it is a function of a text, or None")


def checked_budgets(budgets: Any) -> Budgets | None:
    """Errors: I015."""
    if budgets is None or isinstance(budgets, Budgets):
        return budgets
    raise wrong_value("budgets", budgets, "give clew.Budgets(...), or clew.Budgets.strict()")


def checked_signature(signature: Any) -> str | None:
    """Errors: I015."""
    if signature is None or isinstance(signature, str):
        return signature
    raise wrong_value("signature", signature, "give the name of a signature")


def checked_links(links: Any) -> str | None:
    """Errors: I340."""
    return None if links is None else check_links(links)


def checked_trust(trust: Any) -> bool | None:
    """Errors: I015."""
    return None if trust is None else bool(checked_bool("trust", trust))


def checked_guard(guard: Any) -> Any:
    """Errors: I015."""
    if isinstance(guard, (bool, enum.Enum)):
        return guard
    raise wrong_value("guard", guard, "it is True, False or a GuardSide")
