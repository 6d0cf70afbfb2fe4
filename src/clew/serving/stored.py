"""Builds in the disk cache: a model that was compiled before is mapped instead of compiled.

The key of a build covers the model's structure and weights, the passes with their options, the
target, and clew's own code. The trace and the loops of kernels are not stored. If they are needed,
the passes run again, with the same result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final

from clew.backends.options import Options
from clew.build.result import Build
from clew.codegen.objects import toolchain
from clew.ir.expr import Call, Constant
from clew.ir.module import Module
from clew.ir.printer import print_module
from clew.ir.structural import array_digest
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.runtime.artifact import LoadedBuild
from clew.runtime.cache import Cache
from clew.runtime.program import Program
from clew.runtime.sizes_key import SizesKey
from clew.serving.chain import Chain
from clew.serving.from_file import LoadedChain, read_stored
from clew.serving.often import Often
from clew.serving.served import Declined, Request, Served
from clew.support.background import start_thread
from clew.support.budgets import Budgets, current
from clew.support.collection import no_collections
from clew.support.errors import ClewError
from clew.version import package_version

# Larger builds are written in the background, so that the caller does not wait.
_WRITTEN_AT_ONCE_BYTES = 4 << 20
# Larger builds are not stored: their disk space costs more than the time of the passes.
_MOST_BYTES = 2 << 30


class Stored:
    """Serves the sizes that the stored build serves, without running the passes.

    `rebuild` makes the build that explains a program, from its sizes.
    """

    name: Final = "the stored build"

    def __init__(
        self,
        chain: Chain[LoadedBuild],
        rebuild: Callable[[Mapping[str, int]], Build],
        often: Callable[[SizesKey, Mapping[str, int], Program], Often | None],
    ) -> None:
        self._chain = chain
        self._rebuild = rebuild
        self._often = often

    def serve(self, request: Request) -> Served[Build] | Declined:
        """Errors: I042 if sizes contradict each other."""
        answer = self._chain.first(request)
        if not isinstance(answer, Served):
            return Declined(self.name, "; ".join(declined.reason for declined in answer))
        key, sizes = request.key, request.sizes
        often = None if request.is_empty else self._often(key, sizes, answer.program)
        return Served(
            self.name, key, sizes, answer.program, rebuild=lambda: self._rebuild(sizes),
            weight=answer.weight, often=often,
        )  # fmt: skip


class StoredBuild:
    """The place of one model's build in the cache."""

    def __init__(self, module: Module, options: Options, cache: Cache) -> None:
        self._key = _key(module, options) if cache.root is not None else None
        self._seal = hashlib.blake2b(f"seal {self._key}".encode(), digest_size=20).hexdigest()
        self._cache = cache
        self._threads = options.threads
        self._backends = options.backends

    def load(self) -> LoadedChain | None:
        """Returns what is stored, ready to run; None if there is none, or it is damaged.

        The file's checksum is computed once. Later loads only map the file, as long as its device,
        inode, size, and times of writing and change stay the same.
        """
        file = self._cache.open(self._key) if self._key is not None else None
        if file is None:
            return None
        with file:
            checked = self._cache.get(self._seal) == _identity(file)
            try:
                found = read_stored(file, self._threads, checked=checked, backends=self._backends)
            except ClewError:
                self._cache.drop(self._key)
                return None
            self._cache.touch(file)  # changes the identity, too
            self._cache.put(self._seal, _identity(file))
        return found

    def keep(self, save: Callable[..., None], size_bytes: int) -> None:
        """Stores a build by `save(path, mode)`; large builds in the background.

        If a build cannot be saved or the disk write fails, there is no error: the model is compiled
        again the next time.
        """
        key = self._key
        if key is None or size_bytes > _MOST_BYTES:
            return

        def write() -> None:
            path = self._cache.file(key)
            if path is None:
                return
            with contextlib.suppress(ClewError), no_collections():
                save(path, mode=0o600)
                self._seal_kept()
                self._cache.grew(size_bytes)

        at_once = size_bytes < _WRITTEN_AT_ONCE_BYTES
        if at_once or start_thread(write, "clew-store", daemon=False) is None:
            write()

    def _seal_kept(self) -> None:
        file = self._cache.open(self._key) if self._key is not None else None
        if file is not None:
            with file:
                self._cache.put(self._seal, _identity(file))


def _identity(file: BinaryIO) -> bytes:
    """Returns an identity that changes if an open file is written or replaced."""
    found = os.fstat(file.fileno())
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return repr(parts).encode()


def _key(module: Module, options: Options) -> str | None:
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
        package_version(),
        toolchain(),
        given,
        print_module(module),  # names too: a saved build tells them
    )
    digest.update("|".join(parts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
