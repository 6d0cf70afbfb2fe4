"""The providers of programs from a file, which need no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clew.runtime.artifact import LoadedBuild, LoadedTemplate
from clew.runtime.sizes_key import SizesKey
from clew.serving.served import Declined, Request, Served


class SavedBuilds:
    """Serves the sizes and values for which the file holds builds."""

    name: Final = "a saved build"

    def __init__(self, builds: Mapping[SizesKey, LoadedBuild]) -> None:
        self._builds = builds

    def serve(self, request: Request) -> Served[LoadedBuild] | Declined:
        """Never fails."""
        found = self._builds.get(request.key)
        if found is None:
            return Declined(self.name, "there is none for these sizes")
        return loaded(self.name, request.key, {}, found)


class SavedAllSizes:
    """Serves the sizes for which the file's build for all sizes is valid."""

    name: Final = "the saved build for all sizes"

    def __init__(self, template: LoadedTemplate) -> None:
        self._template = template

    def serve(self, request: Request) -> Served[LoadedBuild] | Declined:
        """Errors: I042 if sizes contradict each other."""
        found = self._template.at(request.key, request.sizes)
        if found is None:
            return Declined(self.name, "it is not valid at these sizes")
        return loaded(self.name, request.key, request.sizes, found)


def loaded(
    name: str, key: SizesKey, sizes: Mapping[str, int], build: LoadedBuild
) -> Served[LoadedBuild]:
    """Returns what serves the calls with a key by a build from a file."""
    return Served(name, key, sizes, build.program, build, weight=len(build.kernels))
