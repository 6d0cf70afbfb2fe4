"""The keys of builds in the disk cache."""

from __future__ import annotations

import hashlib

from clew.backends.options import Options
from clew.codegen.objects import toolchain
from clew.ir.expr import Call, Constant
from clew.ir.module import Module
from clew.ir.printer import print_module
from clew.ir.structural import array_digest
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.runtime.cache import Cache
from clew.runtime.code_version import code_version
from clew.support.budgets import Budgets, current


def build_key(module: Module, options: Options, cache: Cache) -> str | None:
    """Returns the key of a build in the cache; None if it must not be stored."""
    given = options.digest()
    if given is None:
        return None
    if current() != Budgets():  # budgets are not checked for a stored build
        return None
    functions = [function for _, function in module]
    digest = hashlib.blake2b(digest_size=20)
    for node in post_order(functions, into_functions=True):
        if isinstance(node, Call) and isinstance(node.op, Op) and not node.op.is_builtin:
            return None  # a user's code has no version
        if isinstance(node, Constant):
            digest.update((node.token or array_digest(node.data)).encode())
    parts = (
        code_version(cache),
        toolchain(),
        given,
        print_module(module),  # names too: a saved build tells them
    )
    digest.update("|".join(parts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
