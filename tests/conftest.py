"""What all tests share: a disk cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything of clew is imported; processes that tests start inherit it.
os.environ["CLEW_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache" / "tests")
