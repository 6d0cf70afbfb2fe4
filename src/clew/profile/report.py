"""A profile: where the time of a model's runs goes, with its output formats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.profile import chrome, frames, tables
from clew.profile.files import writing
from clew.profile.frames import Frames
from clew.profile.rows import ProfileRows
from clew.support.shown import Shown, counted
from clew.support.writing import write_text


@dataclass(frozen=True, repr=False)
class Profile(ProfileRows, Shown):
    """Where the time of a model's runs goes.

    `wall` is the time of plain calls, `timed_wall` that of calls with timers, which alternate with
    them and are slower by `overhead` (relative, the median over pairs). There are `rounds` timed
    rounds of `runs_a_round` runs each, after `warmup` runs. `kernels` are in the order they run,
    followed by host steps; `layers` and `modules` are in the model's order. `outside` is an
    approximate breakdown of `outside_ns`. `limits` is None without `roofline`. `notes` list
    deviations from the request. `unfused` and `gains` (the whole run first) are set in the mode
    `both`.
    """

    unfused: Profile | None = None

    def _about(self) -> str:
        threads = counted(self.threads, "thread")
        return f"{self.wall.ns / 1e3:.4g} µs on {threads}, {counted(len(self.kernels), 'kernel')}"

    # --- as text, data, files ---

    def __str__(self) -> str:
        return self.table()

    def table(
        self, by: frames.By | None = None, *, top: int | None = tables.TOP, width: int = 120
    ) -> str:
        """Returns tables as text: of `"kernel"`, `"layer"`, `"operator"` or `"module"` (of a
        PyTorch model), by default of kernels and layers.

        Each table shows the `top` longest rows, or all with `None`.
        """
        return tables.text(self, by, top, width)

    def annotated(self, kernel: str, *, width: int = 120) -> str:
        """Returns a kernel's loop nest with each line's share of its time.

        Errors: I113 (no such kernel), I114 (no samples were taken of it).
        """
        return tables.annotated(self.kernel(kernel), width)

    def save(self, path: str | Path) -> None:
        """Writes `to_json()` to a file.

        Errors: I115 (the file cannot be written).
        """
        with writing(Path(path)):
            write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_pandas(self) -> Frames:
        """Returns frames of kernels, layers and operators; see `docs/profile.md`.

        Errors: I112 if pandas is not installed.
        """
        return frames.frames(self)

    def to_csv(self, path: str | Path, *, by: frames.By | None = None) -> None:
        """Writes one table as CSV: of all rows (the run, kernels, layers, operators), or one row
        for each `"kernel"`, `"layer"`, `"operator"` or `"module"`.

        Errors: I115 (the file cannot be written).
        """
        frames.write_csv(self, Path(path), by)

    def to_parquet(self, path: str | Path, *, by: frames.By | None = None) -> None:
        """Writes the table of `to_csv` as Parquet.

        Errors: I112 if pandas or pyarrow is not installed, I115 (the file cannot be written).
        """
        frames.write_parquet(self, Path(path), by)

    def to_chrome_trace(self, path: str | Path | None = None) -> dict[str, Any]:
        """Returns one run as a trace for Perfetto or `chrome://tracing`; also writes it to `path`.

        Errors: I115 (the file cannot be written).
        """
        return chrome.trace(self, None if path is None else Path(path))
