"""Whole builds on the disk: a model compiled before starts by mapping what it was compiled to.

A build is found by the model's structure and weights, the passes with their options, the target and
clew's own code. The trace and the kernels' loops are not kept: the passes run again, with the same
result, when somebody asks for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from typing import BinaryIO

from clew.backends.options import Options
from clew.codegen.objects import toolchain
from clew.ir.expr import Call, Constant
from clew.ir.module import Module
from clew.ir.printer import print_module
from clew.ir.structural import array_digest
from clew.ir.visit import post_order
from clew.loading import LoadedModel, load_opened
from clew.ops.registry import Op
from clew.runtime.cache import Cache
from clew.support.budgets import Budgets, current
from clew.support.errors import ClewError
from clew.version import package_version

# Writing more would keep the caller waiting.
_WRITTEN_AT_ONCE_BYTES = 4 << 20
# A larger build costs more disk than the passes cost time.
_MOST_BYTES = 2 << 30


class StoredBuild:
    """The place of one model's build in the cache."""

    def __init__(self, module: Module, options: Options, cache: Cache) -> None:
        self._key = _key(module, options) if cache.root is not None else None
        self._seal = hashlib.blake2b(f"seal {self._key}".encode(), digest_size=20).hexdigest()
        self._cache = cache
        self._threads = options.threads
        self._backends = options.backends

    def load(self) -> LoadedModel | None:
        """Returns the build as a model ready to run; None where there is none, or a damaged one.

        The file's checksum is computed once. As long as it stays the same file afterwards (device,
        inode, size, times of writing and of change), it is only mapped.
        """
        file = self._cache.open(self._key) if self._key is not None else None
        if file is None:
            return None
        with file:
            checked = self._cache.get(self._seal) == _identity(file)
            try:
                model = load_opened(file, self._threads, checked=checked, backends=self._backends)
            except ClewError:
                self._cache.drop(self._key)
                return None
            self._cache.touch(file)  # changes the identity, too
            self._cache.put(self._seal, _identity(file))
        return model

    def keep(self, save: Callable[..., None], size_bytes: int) -> None:
        """Keeps a build that `save(path, mode)` writes, a large one in the background.

        A build that cannot be saved, or a disk that refuses, is no error: it is built again.
        """
        key = self._key
        if key is None or size_bytes > _MOST_BYTES:
            return

        def write() -> None:
            path = self._cache.file(key)
            if path is None:
                return
            with contextlib.suppress(ClewError):
                save(path, mode=0o600)
                self._seal_kept()
                self._cache.grew(size_bytes)

        if size_bytes < _WRITTEN_AT_ONCE_BYTES:
            write()
        else:
            threading.Thread(target=write, name="clew-store").start()

    def _seal_kept(self) -> None:
        file = self._cache.open(self._key) if self._key is not None else None
        if file is not None:
            with file:
                self._cache.put(self._seal, _identity(file))


def _identity(file: BinaryIO) -> bytes:
    """Returns what changes whenever an open file is written, or another takes its place."""
    found = os.fstat(file.fileno())
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return repr(parts).encode()


def _key(module: Module, options: Options) -> str | None:
    """Returns what a build is kept under; None where it must not be kept."""
    if options.guard or options.instruments or options.has_user_code or options.budgets:
        return None
    if current() != Budgets():  # nothing is checked of a build that is only read
        return None
    functions = [function for _, function in module]
    digest = hashlib.blake2b(digest_size=20)
    for node in post_order(functions, into_functions=True):
        if isinstance(node, Call) and isinstance(node.op, Op) and not node.op.is_builtin:
            return None  # a user's code has no version
        if isinstance(node, Constant):
            digest.update((node.token or array_digest(node.data)).encode())
    parts = (
        package_version(),
        toolchain(),
        options.target.key,
        str(options.opt_level),
        options.bounds,
        *map(str, options.passes),
        "required",
        *options.required,
        "disabled",
        *options.disabled,
        print_module(module),  # names too: a saved build tells them
    )
    digest.update("|".join(parts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
