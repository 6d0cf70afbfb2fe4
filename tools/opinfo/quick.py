"""Makes exports quick: hundreds of them are made here."""

from __future__ import annotations

import functools

import torch._export.utils


def quicken() -> None:
    """Keeps a list that torch otherwise makes anew, in half a second, for each program."""
    name = "_collect_all_valid_cia_ops_for_namespace"
    found = getattr(torch._export.utils, name)
    if not hasattr(found, "cache_info"):
        setattr(torch._export.utils, name, functools.cache(found))
