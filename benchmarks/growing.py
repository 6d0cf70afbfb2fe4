"""Times a token of a decoder whose cache grows: in buffers with room, and as whole arrays.

    python benchmarks/growing.py llama/ --context 128,1024
    python benchmarks/growing.py decoder.onnx --results growing

The model is a folder or file that `clew.compile` takes, with one input besides its cache, of shape
[batch, sequence]. Times are those of the calling thread, in turns: each token has a new length. The
third column repeats a length, whose tables exist: the difference to the first is what a new length
costs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

import clew
from clew.runtime.session import Session
from clew.runtime.state import conventional_pairs
from harness import results as written
from harness.report import console, markdown

_VALUES: Final = 32  # token numbers are below this
_WARMUP: Final = 16
COLUMNS: Final = (
    "context", "buffers, ms", "whole arrays, ms", "same length, ms", "new length, ms", "ratio",
)  # fmt: skip


class Decoder:
    """A session of a decoder with a prompt of some positions."""

    def __init__(self, session: Session, context: int, rng: np.random.Generator) -> None:
        (spec,) = session.inputs
        self.session = session
        self._dtype, self._rng = spec.dtype, rng
        self.step(context)

    def step(self, count: int = 1) -> int:
        """Returns the nanoseconds of a call with so many new positions."""
        given = self._rng.integers(0, _VALUES, (1, count)).astype(self._dtype)
        start = time.thread_time_ns()
        self.session(given)
        return time.thread_time_ns() - start


def row(compiled: Any, context: int, tokens: int) -> list[str]:
    """Returns the line of a context: medians, and the median ratio of buffers to whole arrays."""
    rng = np.random.default_rng(0)
    pairs = conventional_pairs(compiled.inputs, compiled.outputs)
    sessions = compiled.session(), Session(compiled, pairs), compiled.session()
    new, whole, same = (Decoder(session, context, rng) for session in sessions)
    same.step()
    found = []
    for _ in range(_WARMUP + tokens):
        same.session.rewind(context)
        found.append((new.step(), whole.step(), same.step()))
    times = np.array(found[_WARMUP:]) / 1e6
    first, second, third = times.T
    numbers = [*np.median(times, axis=0), np.median(first - third), np.median(first / second)]
    return [str(context), *(f"{number:.3f}" for number in numbers)]


def main(
    model: Annotated[Path, typer.Argument(help="Folder or file of a decoder.")],
    context: Annotated[str, typer.Option(help="Positions of the prompts.")] = "128,1024",
    tokens: Annotated[int, typer.Option(help="Timed tokens.", min=1)] = 100,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints the time of a token in each form."""
    compiled = clew.compile(model, threads=threads)
    rows = [row(compiled, int(each), tokens) for each in context.split(",")]
    title = f"a token of {model.name}, {threads} threads, CPU time of the calling thread"
    console.print(f"{title}\n\n{markdown(COLUMNS, rows, numbers=6)}", soft_wrap=True)
    if section:
        written.record(section, [written.Table("", COLUMNS, rows, 6, f"A{title[1:]}.")])


if __name__ == "__main__":
    typer.run(main)
