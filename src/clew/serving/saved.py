"""The providers of programs from a file, which need no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
        served = self._served(request.key, request.sizes)
        return served or Declined(self.name, "it is not valid at these sizes")

    def _served(self, key: SizesKey, sizes: Mapping[str, int]) -> Served[LoadedBuild] | None:
        """Returns what serves the calls with a key; None if the build is not valid there."""
        found = self._template.at(key, sizes)
        if found is None:
            return None
        return replace(loaded(self.name, key, sizes, found), again=self._served)


def loaded(
    name: str, key: SizesKey, sizes: Mapping[str, int], build: LoadedBuild
) -> Served[LoadedBuild]:
    """Returns what serves the calls with a key by a build from a file."""
    return Served(name, key, sizes, build.program, build, weight=len(build.kernels))
