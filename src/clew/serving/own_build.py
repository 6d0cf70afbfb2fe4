"""The provider of builds for one set of sizes or values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from clew.build.result import Build
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.ir.size_names import SizeReader
from clew.passes.specialize import Specialize
from clew.runtime.sizes_key import SizesKey, decides_now
from clew.serving.interface import Interface
from clew.serving.making import Maker
from clew.serving.served import Request, Served
from clew.support.errors import GraphTypeError, InputError

# A build that was compiled for its sizes takes about as much memory as so many programs at sizes.
_OF_OWN: Final = 16


class OwnBuild:
    """Serves every call by a build for its sizes, and for its values that decide sizes."""

    name: Final = "a build for these sizes"

    def __init__(self, maker: Maker, interface: Interface, model: Module | DeferredModule) -> None:
        self._maker = maker
        self.interface = interface
        self._model = model

    def serve(self, request: Request) -> Served[Build]:
        """Errors: those of a build."""
        assert isinstance(self._model, Module), "it is imported at the call"
        return self.made(request, self._model, request.key, self.name)

    def made(self, request: Request, module: Module, key: SizesKey, name: str) -> Served[Build]:
        """Returns a build of a module for a call, for later calls with a key.

        Errors: I042 if sizes contradict each other, and those of a build.
        """
        interface = self.interface
        values = tuple(
            (interface.inputs[n].name, request.arrays[n].copy())
            for n in interface.deciding
            if decides_now(request.arrays[n])
        )
        sizes = sizes_of(module, request.arrays)
        build = self._maker.build(module, Specialize(tuple(sizes.items()), values))
        return own(name, key, build)


def sizes_of(module: Module, arrays: Sequence[Any]) -> dict[str, int]:
    """Returns the sizes that a call's arguments give to a module.

    Errors: I042 if they contradict each other.
    """
    try:
        return SizeReader(module.main.params).read(arrays)
    except GraphTypeError as error:
        raise InputError("I042", error.message) from error


def own(name: str, key: SizesKey, build: Build) -> Served[Build]:
    """Returns what serves the calls with a key by a build that was compiled for them."""
    weight = _OF_OWN * (1 + len(build.uses))
    return Served(name, key, build.sizes, build.program, build, is_own=True, weight=weight)
