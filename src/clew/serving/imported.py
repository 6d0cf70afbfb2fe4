"""The provider for graphs that values or shapes of a call decide: they are imported at the call."""

from __future__ import annotations

from typing import Final

from clew.build.result import Build
from clew.ir.deciding import deciding_params
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.serving.own_build import OwnBuild
from clew.serving.served import Request, Served
from clew.support.bounds import bounds_in_force


class Imported:
    """Serves every call by an import and a build for its sizes and values.

    An import may find further inputs whose values decide sizes: keys of later calls have these.
    """

    name: Final = "an import for this call"

    def __init__(self, own: OwnBuild, model: DeferredModule, bounds: str) -> None:
        self._own = own
        self._model = model
        self._bounds = bounds

    def serve(self, request: Request) -> Served[Build]:
        """Errors: those of an import and a build."""
        interface = self._own.interface
        names = [spec.name for spec in interface.inputs]
        with bounds_in_force(self._bounds):
            module: Module = self._model.module_for(dict(zip(names, request.arrays, strict=True)))
        deciding = map(names.index, self._model.deciding)
        found = {*interface.deciding, *deciding, *deciding_params(module.main)}
        if found != set(interface.deciding):
            interface.decide_by(sorted(found))
        return self._own.made(request, module, interface.key(request.arrays), self.name)
