"""How torch finds clew: the entry point of the group `torch_dynamo_backends`.

torch loads the entry point on the first use of the name and registers the result. Two threads that
use the name first both do so, and the second one fails: "duplicate name: clew". So `registered`
registers the backend itself, once, and is None, which torch does not register.
"""

from __future__ import annotations

from typing import Any, Final

from torch._dynamo.backends import registry

from clew.support.locks import Lock
from clew.torch.backend import clew_backend

_NAME: Final = "clew"
_lock: Final = Lock()


def __getattr__(name: str) -> Any:
    if name != "registered":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if _NAME not in registry._COMPILER_FNS:
            registry.register_backend(clew_backend, name=_NAME)
