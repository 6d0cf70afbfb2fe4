"""Whether the user trusts the writer of a model file whose reading runs code in it.

Only an argument (`trust=True` of `clew.load` and `clew.Limits`) or a command-line option
(`--trust`) enables this, never the environment and never the explorer's page.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Final

from clew.support.errors import Hint
from clew.support.scoped import scoped

TRUST_HINT: Final = Hint(
    "if you trust whoever wrote it: clew.load(path, trust=True), or limits=clew.Limits(trust=True)",
    cli="if you trust whoever wrote it: --trust",
    page="the explorer reads no such file; Python does: clew.load(path, trust=True)",
)
_default = False
_in_force: ContextVar[bool | None] = ContextVar("trust", default=None)


def is_trusted() -> bool:
    """Whether files may run code in this thread, by default as set for the process."""
    found = _in_force.get()
    return _default if found is None else found


def set_default_trust(trust: bool) -> None:
    """Sets whether files may run code in this process by default."""
    global _default
    _default = trust


def trusting(trust: bool | None) -> AbstractContextManager[None]:
    """Sets whether files may run code inside the block; `None` changes nothing."""
    return nullcontext() if trust is None else scoped(_in_force, trust)
