"""A profile: where the time of a model's runs goes, and what it can be written as."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from clew.profile import chrome, frames, tables
from clew.profile.files import writing
from clew.profile.frames import Frames
from clew.profile.rows import (
    Gain,
    KernelProfile,
    LayerProfile,
    Limits,
    OperatorProfile,
    Outside,
)
from clew.profile.timing import Time
from clew.support.errors import InputError
from clew.support.shown import Shown, counted
from clew.support.writing import write_text

SCHEMA: Final = "clew.profile/1"


# Kernels that an error names.
_NAMED = 8


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Where the time of a model's runs goes.

    `wall` is the time of plain calls, `timed_wall` of those with timers, which took turns and were
    slower by `overhead` (relative, the median over pairs of both); `rounds` have been timed after
    `warmup` runs, each of them in `runs_a_round` runs. `kernels` are in the order they run, host
    steps after them; `layers` in the model's order; `outside` is what `outside_ns` is for, about.
    `limits` is None without `roofline`. `notes` say what is not as asked for. `unfused` and `gains`
    are there in the mode `both`, the whole run first.
    """

    mode: Literal["fused", "unfused"]
    target: str
    threads: int
    warmup: int
    rounds: int
    runs_a_round: int
    wall: Time
    timed_wall: Time
    overhead: float
    kernels: tuple[KernelProfile, ...]
    layers: tuple[LayerProfile, ...]
    outside: tuple[Outside, ...]
    limits: Limits | None = None
    notes: tuple[str, ...] = ()
    unfused: Profile | None = None
    gains: tuple[Gain, ...] = ()

    def _about(self) -> str:
        threads = counted(self.threads, "thread")
        return f"{self.wall.ns / 1e3:.4g} µs on {threads}, {counted(len(self.kernels), 'kernel')}"

    @property
    def operators(self) -> tuple[OperatorProfile, ...]:
        """The operators of all kernels in order."""
        return tuple(operator for kernel in self.kernels for operator in kernel.operators)

    @property
    def kernels_ns(self) -> float:
        """The time in kernels and host steps: the sum of theirs, and of the layers'."""
        return sum(kernel.ns for kernel in self.kernels)

    @property
    def outside_ns(self) -> float:
        """What is left of the wall time: the call, its checks and memory, branches and loops.

        A few nanoseconds below zero are noise.
        """
        return self.wall.ns - self.kernels_ns

    def kernel(self, name: str) -> KernelProfile:
        """Returns a kernel by its name.

        Errors: I113.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        like = [k.name for k in self.kernels if name in k.name] or [k.name for k in self.kernels]
        more = " ..." if len(like) > _NAMED else ""
        raise InputError(
            "I113",
            f"no kernel named {name!r} has run",
            hint=f"those that have: {', '.join(like[:_NAMED])}{more}",
        )

    # --- as text, data, files ---

    def __str__(self) -> str:
        return self.table()

    def table(
        self, by: tables.By | None = None, *, top: int | None = tables.TOP, width: int = 120
    ) -> str:
        """Returns tables as text: of `"kernel"`, `"layer"` or `"operator"`, or kernels and layers.

        Of each only the `top` rows that take longest are shown, all with `None`.
        """
        return tables.text(self, by, top, width)

    def annotated(self, kernel: str, *, width: int = 120) -> str:
        """Returns a kernel's loop nest with what each line takes of its time.

        Errors: I113 (no such kernel), I114 (no samples were taken of it).
        """
        return tables.annotated(self.kernel(kernel), width)

    def to_json(self) -> dict[str, Any]:
        """Returns the profile as lists and dictionaries; see `docs/profile.md`."""
        return {
            "schema": SCHEMA,
            "mode": self.mode,
            "target": self.target,
            "threads": self.threads,
            "warmup": self.warmup,
            "rounds": self.rounds,
            "runs_a_round": self.runs_a_round,
            "wall": asdict(self.wall),
            "timed_wall": asdict(self.timed_wall),
            "overhead": self.overhead,
            "kernels_ns": self.kernels_ns,
            "outside_ns": self.outside_ns,
            "outside": [asdict(row) for row in self.outside],
            "limits": asdict(self.limits) if self.limits else None,
            "notes": list(self.notes),
            "kernels": [_kernel_json(kernel) for kernel in self.kernels],
            "layers": [asdict(layer) for layer in self.layers],
            "unfused": self.unfused.to_json() if self.unfused else None,
            "gains": [asdict(gain) | gain.derived() for gain in self.gains],
        }

    def save(self, path: str | Path) -> None:
        """Writes `to_json()` to a file.

        Errors: I115 (the file cannot be written).
        """
        with writing(Path(path)):
            write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def to_pandas(self) -> Frames:
        """Returns frames of kernels, layers and operators; see `docs/profile.md`.

        Errors: I112 where pandas is not installed.
        """
        return frames.frames(self)

    def to_csv(self, path: str | Path) -> None:
        """Writes one table of all rows (the run, kernels, layers, operators) as CSV.

        Errors: I112 where pandas is not installed, I115 (the file cannot be written).
        """
        frames.write_csv(self, Path(path))

    def to_parquet(self, path: str | Path) -> None:
        """Writes one table of all rows (the run, kernels, layers, operators) as Parquet.

        Errors: I112 where pandas or pyarrow is not installed, I115 (the file cannot be written).
        """
        frames.write_parquet(self, Path(path))

    def to_chrome_trace(self, path: str | Path | None = None) -> dict[str, Any]:
        """Returns one run as a trace for Perfetto or `chrome://tracing`; also writes it to `path`.

        Errors: I115 (the file cannot be written).
        """
        return chrome.trace(self, None if path is None else Path(path))


def _kernel_json(kernel: KernelProfile) -> dict[str, Any]:
    """Returns a kernel with those lines of its loop nest that samples fell on, and instructions as
    columns, for there may be thousands.
    """
    lines = tuple(line for line in kernel.lines if line.samples)
    instructions = {
        "place": [i.place for i in kernel.instructions],
        "address": [i.address for i in kernel.instructions],
        "line": [i.line for i in kernel.instructions],
        "samples": [i.samples for i in kernel.instructions],
    }
    plain = asdict(replace(kernel, lines=lines, instructions=()))
    del plain["node"]  # of this process's graph
    return plain | {"instructions": instructions}
