"""Builds the explorer's page with the package: runs for wheels, sdists and editable installs.

What is built lies in src/clew/static/, is shipped in wheels and sdists and never in git. A machine
without Node gets it as a Python wheel, and only where the page has to be built: an sdist carries
the page. `CLEW_SKIP_BUNDLE=1` leaves it out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))
import build_explorer  # lies in tools/, beside what developers call


class PageHook(BuildHookInterface[Any]):
    """Makes src/clew/static/ when frontend/ is not what it was made from."""

    def dependencies(self) -> list[str]:
        """Returns Node, if the page must be built and the machine has none that will do."""
        if self._nothing_to_do() or build_explorer.node_on_path() is not None:
            return []
        return [build_explorer.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the page. Ends the build with a readable message when that fails."""
        if self._nothing_to_do():
            return
        try:
            build_explorer.build(say=self.app.display_info)
        except build_explorer.BuildError as error:
            self.app.abort(str(error))

    def _nothing_to_do(self) -> bool:
        return build_explorer.is_fresh() or os.environ.get("CLEW_SKIP_BUNDLE", "") not in ("", "0")
