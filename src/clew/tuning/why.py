"""Why a kernel is faster with other choices: what changed in its work, counted in its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clew.backends.cpu.lowering import KernelSource
from clew.predict.describe import kernel_facts, threading_facts

_WORDS: Final = {
    "count_load": "loads",
    "count_store": "stores",
    "count_fma": "multiply-adds",
    "count_alu": "other vector instructions",
    "count_broadcast": "broadcasts",
    "count_shuffle": "shuffles",
    "count_divide": "divisions",
    "count_gather": "gathers",
    "count_integer": "integer instructions",
    "count_branch": "branches",
    "count_prefetch": "prefetches",
    "traffic_l1_bytes": "bytes from beyond L1",
    "traffic_l2_bytes": "bytes from beyond L2",
    "latency_cycles": "cycles of waiting for earlier results",
    "scratch_bytes": "bytes of scratch memory",
    "workspace_bytes": "bytes of workspace",
}
_LEAST: Final = 0.03
_MOST: Final = 3
_SMALL: Final = 64.0  # counts below do not matter


def why(default: KernelSource, tuned: KernelSource, threads: int) -> str:
    """Returns the work that the tuned kernel saves, from counted instructions and bytes; says so if
    the counts do not explain the gain.
    """
    before, after = kernel_facts(default), kernel_facts(tuned)
    less = sorted(_changes(before, after))[:_MOST]
    words = [f"{-100 * change:.0f} % fewer {_WORDS[name]}" for change, name in less]
    was, now = threading_facts(default, threads), threading_facts(tuned, threads)
    if threads > 1 and now["span"] < (1 - _LEAST) * was["span"]:
        words.append(f"threads share it better ({now['chunks']} chunks instead of {was['chunks']})")
    if not words and default.rules != tuned.rules:
        words.append(f"the rule {', '.join(tuned.rules)} instead of {', '.join(default.rules)}")
    return ", ".join(words) or "as much counted work: the order of it suits the machine better"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Returns the relative changes of counts that became smaller."""
    found = []
    for name in _WORDS:
        was, now = float(before.get(name, 0)), float(after.get(name, 0))
        if was >= _SMALL and now < (1 - _LEAST) * was:
            found.append((now / was - 1.0, name))
    return found
