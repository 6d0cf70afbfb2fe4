"""`make demo`: compiles and runs two networks, compares them with ONNX Runtime, and follows one
layer of each from the model down to its instructions.

    python tools/demo.py [--model NAME]... [--layer LAYER] [--threads N] [--rows N]

Native code goes to a separate empty cache, so that the first compilation is cold.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any

import onnxruntime
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import clew
import zoo
from clew.machine.target import host
from clew.support.difference import relative_error
from clew.support.settings import usable_cpus
from clew.support.tables import table

_COLUMNS = 100
_MODELS = ("light_resnet50", "encoder_small")
_RUN_SECONDS = 4.0
_LONGEST_STATEMENT = 400
_TOLERANCE = 1e-4
_STAGE_LINES = 3
_INSTRUCTIONS = 3
_STATEMENTS = 3
_MOVES = re.compile(r"v?p?(mov|xor|broadcast)")
_VECTOR = re.compile(r"\b([xyz]mm|v)\d")


@dataclass(frozen=True)
class Measured:
    """A network compiled and run. Times are seconds."""

    compiled: Any
    load: float
    cold: float
    warm: float
    run: float
    reference_run: float
    error: float


def main() -> None:
    """Prints the demo; exit code 1 where outputs differ from ONNX Runtime's."""
    parser = argparse.ArgumentParser(description="Compile, compare and explain two networks.")
    parser.add_argument("--model", action="append", choices=zoo.names(), help="another network")
    parser.add_argument("--layer", help="the layer to follow")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=12, help="rows of the kernel table")
    asked = parser.parse_args()
    console = Console(width=_COLUMNS, highlight=False)
    machine = host()
    on = f" on {machine.cpu}, {machine.vector_bits}-bit vectors, {usable_cpus()} CPUs\n"
    console.print(Text.assemble((f"clew {clew.__version__}", "bold"), on))
    with tempfile.TemporaryDirectory(prefix="clew-demo-") as folder:
        os.environ["CLEW_CACHE_DIR"] = folder
        right = [_show(console, name, asked) for name in asked.model or _MODELS]
    if not all(right):
        sys.exit("outputs differ from ONNX Runtime's")


def _show(console: Console, name: str, asked: argparse.Namespace) -> bool:
    """Prints all about one network; returns whether its outputs are right."""
    path, feed = zoo.path(name), zoo.inputs(name)
    with console.status(f"compiling and running {name}"):
        found = _measure(path, feed, asked.threads)
        times = found.compiled.time_kernels(*feed.values(), repeats=5)
    console.print(Rule(Text(name, style="bold"), align="left", characters="━"))
    console.print(_summary(found, asked.threads), "")
    console.print(_kernels(times, asked.rows), "")
    layer = asked.layer or _telling_layer(found.compiled.trace)
    console.print(_story(found.compiled, layer), "")
    console.print(Text(f"more: clew trace {os.path.relpath(path)} --layer {layer}\n", "dim"))
    return found.error <= _TOLERANCE


# ------------------------------------------------------------------------------------ measuring


def _measure(path: Path, feed: Mapping[str, Any], threads: int) -> Measured:
    load, compile_ = clew.load, clew.compile  # importing them is not the model's time
    start = time.perf_counter()
    module = load(path)
    loaded = time.perf_counter()
    compiled = compile_(module, threads=threads)
    cold = time.perf_counter() - loaded
    session = _session(path, threads)
    ours, theirs = compiled.run(feed), session.run(None, dict(feed))
    outputs = zip(session.get_outputs(), theirs, strict=True)
    error = max(relative_error(ours[o.name], value) for o, value in outputs)
    feeds = [dict(feed), *(zoo.inputs(path.stem, seed) for seed in (1, 2))]
    ours_next, theirs_next = cycle(feeds), cycle(feeds)
    runs = _interleaved(
        lambda: compiled.run(next(ours_next)), lambda: session.run(None, next(theirs_next))
    )
    # By now the disk holds the results of the first compilation.
    start_again = time.perf_counter()
    compile_(module, threads=threads)
    warm = time.perf_counter() - start_again
    return Measured(compiled, loaded - start, cold, warm, *runs, error)


def _session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _interleaved(ours: Any, theirs: Any) -> tuple[float, float]:
    """Returns median times of two interleaved calls, so that both see the same machine."""
    seconds: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + _RUN_SECONDS
    while len(seconds[0]) < 5 or time.perf_counter() < end:
        for call, into in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            call()
            into.append(time.perf_counter() - start)
    return median(seconds[0]), median(seconds[1])


def _summary(found: Measured, threads: int) -> RenderableType:
    build, ratio = found.compiled.build, found.run / found.reference_run
    layers = len(found.compiled.trace.layers)
    cores = "one thread" if threads == 1 else f"{threads} threads"
    rows = [
        ("read", f"{found.load * 1e3:.0f} ms", f"{layers} layers"),
        (
            "compile",
            f"{found.cold:.2f} s",
            f"{len(build.uses)} kernels, {len(build.binaries)} of them distinct",
        ),
        ("compile again", f"{found.warm:.2f} s", "the whole build from the disk cache"),
        (
            "run",
            f"{found.run * 1e3:.2f} ms",
            f"ONNX Runtime {found.reference_run * 1e3:.2f} ms: {ratio:.2f} × its time, {cores}",
        ),
        (
            "outputs",
            f"{found.error:.1e}",
            f"max |error| / max |output| against ONNX Runtime, at most {_TOLERANCE:.0e}",
        ),
    ]
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="cyan")
    made.add_column(justify="right", style="bold", no_wrap=True)
    made.add_column()
    for row in rows:
        made.add_row(*row)
    return made


# ---------------------------------------------------------------------------------- the kernels


def _kernels(times: list[Any], rows: int) -> RenderableType:
    made = table("kernel", "layers, in order", "rule", "µs", "share", right=("µs", "share"))
    made.expand = True
    for column in made.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    made.columns[1].ratio = 1
    longest = sorted(times, key=lambda t: -t.median_ns)
    for entry in longest[:rows]:
        made.add_row(
            Text(entry.kernel.name, style="cyan"),
            Text(", ".join(entry.kernel.layers)),
            Text(", ".join(entry.kernel.rules)),
            f"{entry.median_ns / 1e3:.0f}",
            f"{100 * entry.share:.1f} %",
        )
    rest = longest[rows:]
    if not rest:
        return made
    share = 100 * sum(t.share for t in rest)
    return Group(made, Text(f"and {len(rest)} more, with {share:.1f} % of the time", style="dim"))


# ---------------------------------------------------------------------------- from layer to code


def _telling_layer(trace: Any) -> str:
    """Returns the layer, of those at the start, that most stages changed."""
    runs = [la for la in trace.layers[:12] if trace.layer(la).kernels]
    return str(max(runs, key=lambda la: len(trace.layer(la).chapters)))


def _story(compiled: Any, layer: str) -> RenderableType:
    """Returns a layer's story: its nodes at every stage, its kernels, their loops and
    instructions.
    """
    trace = compiled.trace
    story = trace.layer(layer)
    parts: list[RenderableType] = [Text(f"the story of layer {story.title}", style="bold")]
    for chapter in story.chapters:
        event = _event(chapter.event) if chapter.stage else "the layer as it was read"
        parts.append(_head(chapter.name, event))
        parts += [_line(str(p.line), text) for p, text in _calls(chapter.places)]
    for share in story.kernels:
        kernel = next(k for k in trace.kernels if k.call == share.call)
        count = f"{share.instructions} of its {share.kernel_instructions} instructions"
        parts.append(_head(f"kernel {share.name}", f"{count} are this layer's"))
        handle = next(k for k in compiled.kernels if k.name == share.name)
        steps = " ".join(str(step) for step in handle.schedule.steps)
        parts.append(_line("", f"schedule: {steps}", "dim"))
        parts += _code(kernel, {p.line for p in share.loop_lines})
    return Group(*parts)


def _event(event: str) -> str:
    """Returns a pass's effect in short: operators without the constants and functions."""
    before, became, after = event.partition(" (")[0].partition(" became ")
    old, new = _operators(before), _operators(after)
    if not became or not new:
        return event
    return f"{', '.join(old)} became {', '.join(new)}" if old != new else f"{', '.join(new)} again"


def _operators(titles: str) -> list[str]:
    aside = re.compile(r"(\d+ × )?(constant.*|function .*|p\d+|fn)")
    return [t for t in titles.split(", ") if not aside.fullmatch(t)]


def _head(name: str, text: str) -> RenderableType:
    head = Text.assemble((f"{name:<22}", "cyan"), " ", (text, "italic"))
    head.truncate(_COLUMNS, overflow="ellipsis")
    return head


def _calls(places: Any) -> Iterator[tuple[Any, str]]:
    """Yields the first and last lines that call an operator or kernel, without their layers."""
    calls = [
        (place, place.text.partition("  // ")[0])
        for place in places
        if re.search(r" = [%\w.]+\(", place.text) and " = fn(" not in place.text
    ]
    left_out = len(calls) - _STAGE_LINES
    yield from calls[: _STAGE_LINES - 1] + calls[-1:] if left_out > 0 else calls


def _code(kernel: Any, own: set[int]) -> Iterator[RenderableType]:
    """Yields the layer's statements in the loop nest, each with its loops and some instructions."""
    seen: set[str] = set()
    for line in sorted(own):
        text = kernel.loops[line - 1].strip()
        instructions = [i for i in kernel.asm if i.loop_line == line]
        kind = re.split(r"\[| [-+*a-z]*= ", text)[0] + "".join(
            re.findall(r" [-+*a-z]*= ", text)[:1]
        )
        if text.endswith(":") or not instructions or kind in seen or len(seen) == _STATEMENTS:
            continue
        seen.add(kind)  # peeled copies of a statement are told once
        yield _wrapped("", " › ".join(_loops_around(kernel.loops, line)), "dim")
        yield _wrapped(str(line), shorten(text, _LONGEST_STATEMENT, placeholder=" …"))
        first = _most_vectors([i.text for i in instructions])
        for instruction in instructions[first : first + _INSTRUCTIONS]:
            yield _line(f"{instruction.address:x}", instruction.text, "green", 8)
        if len(instructions) > _INSTRUCTIONS:
            yield _line("", f"and {len(instructions) - _INSTRUCTIONS} more", "dim", 8)


def _loops_around(lines: Any, line: int) -> list[str]:
    """Returns the heads of the loops around a line, outermost first."""
    depth, heads = _depth(lines[line - 1]), []
    for text in reversed(lines[: line - 1]):
        if _depth(text) < depth and text.rstrip().endswith(":") and _depth(text):
            depth = _depth(text)
            heads.append(text.strip().rstrip(":").replace(" in ", " "))
    return heads[::-1]


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())


def _most_vectors(instructions: list[str]) -> int:
    """Returns where the stretch begins that works most on vector registers."""
    weights = [len(_VECTOR.findall(t)) * (not _MOVES.match(t)) for t in instructions]
    starts = range(max(1, len(weights) - _INSTRUCTIONS + 1))
    return max(starts, key=lambda n: sum(weights[n : n + _INSTRUCTIONS]))


def _wrapped(number: str, text: str, style: str = "") -> RenderableType:
    """Returns a line, continued below its beginning if it is long."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", width=7, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(number, Text(text, style))
    return grid


def _line(number: str, text: str, style: str = "", indent: int = 2) -> RenderableType:
    shown = Text.assemble((f"{number:>5}  ", "dim"), (text, style))
    shown.truncate(_COLUMNS - indent, overflow="ellipsis")
    return Padding(shown, (0, 0, 0, indent), expand=False)


if __name__ == "__main__":
    main()
