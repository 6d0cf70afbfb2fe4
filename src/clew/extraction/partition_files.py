"""Partitions in a folder: the parts, a manifest of their inputs and outputs, and a program that
runs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.extraction import files
from clew.extraction.stages import Stages
from clew.frontends.formats import cut_formats
from clew.ir.textfile import load_arrays, save_arrays
from clew.support.errors import InputError
from clew.support.files import read_json_file, reason_of
from clew.support.writing import write_text
from clew.version import VERSION

Array = np.ndarray[Any, Any]
MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
_TEXT: Final = "txt"
# The whole model's inputs and outputs in the captured run: `in0` ..., `out0` ...
_CAPTURED: Final = "captured.npz"
_RUNNER: Final = "run.py"


@dataclass(frozen=True)
class PartEntry:
    """A part in the manifest."""

    file: str
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder's manifest, with the captured values."""

    parts: tuple[PartEntry, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    given: Mapping[str, Array]
    expected: Mapping[str, Array]


def forms() -> tuple[str, ...]:
    """Returns the names of forms of parts: text, and the formats that can be cut."""
    return (_TEXT, *(each.name for each in cut_formats()))


def write(partition: Stages, folder: Path, form: str) -> list[Path]:
    """Writes a partition; returns the files.

    Errors: I135, I137, I138.
    """
    if form not in forms():
        raise InputError(
            "I135", f"parts have no form {form!r}", hint=f"it is one of {', '.join(forms())}"
        )
    inputs, outputs = dict(partition.inputs), dict(partition.outputs)
    entries: list[dict[str, Any]] = []
    written: list[Path] = []
    with files.writing(folder / MANIFEST):
        wanted = next((each for each in cut_formats() if each.name == form), None)
        suffix = f".{_TEXT}" if wanted is None else wanted.suffix
        if partition.in_file is not None and partition.in_file.format is wanted:
            made = partition.in_file.make()
            inputs = {name: name for name in inputs}
            outputs = {name: name for name in made.outputs}
            for number, part in enumerate(made.parts):
                written += part.save(folder / f"part{number}{suffix}")
                reads, gives = list(part.part.inputs), list(part.part.outputs)
                entries.append(_entry(f"part{number}{suffix}", part.part, reads, gives))
        else:
            for number, stage in enumerate(partition.stages):
                written += stage.part.save(folder / f"part{number}{suffix}")
                reads, gives = list(stage.reads), list(stage.gives)
                entries.append(_entry(f"part{number}{suffix}", stage.part, reads, gives))
        if len(entries) == len(partition.stages):
            for entry, stage in zip(entries, partition.stages, strict=True):
                entry["options"] = dict(stage.options)
        manifest = {
            "format": FORMAT,
            "clew": VERSION,
            "inputs": [{"name": n, "value": v} for n, v in inputs.items()],
            "outputs": [{"name": n, "value": v} for n, v in outputs.items()],
            "parts": entries,
        }
        arrays = {f"in{n}": np.asarray(partition.given[x]) for n, x in enumerate(inputs)}
        arrays |= {f"out{n}": np.asarray(partition.expected[x]) for n, x in enumerate(outputs)}
        save_arrays(folder / _CAPTURED, arrays)
        write_text(folder / _RUNNER, _PROGRAM.replace("VERSION", VERSION), mode=0o777)
        write_text(folder / MANIFEST, f"{json.dumps(manifest, indent=2)}\n")
    return [folder / MANIFEST, folder / _RUNNER, *written, folder / _CAPTURED]


def _entry(file: str, part: Any, reads: list[str], gives: list[str]) -> dict[str, Any]:
    return {
        "file": file,
        "name": part.name,
        "layers": list(part.layers),
        "reads": reads,
        "gives": gives,
        "options": {},
    }


def read(folder: Path) -> Manifest:
    """Returns the contents of a folder's manifest, with the captured values.

    Errors: I139 for a manifest that is missing or damaged, P011 for the values.
    """
    try:
        manifest = read_json_file(folder / MANIFEST)
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}")
        parts = tuple(
            PartEntry(
                _plain_name(p["file"]),
                tuple(map(_text, p["reads"])),
                tuple(map(_text, p["gives"])),
                dict(p["options"]),
            )
            for p in manifest["parts"]
        )
        inputs, outputs = (
            {_text(v["name"]): _text(v["value"]) for v in manifest[key]}
            for key in ("inputs", "outputs")
        )
        _check_values(parts, inputs.values(), outputs.values())
        with load_arrays(folder / _CAPTURED) as arrays:
            given = {n: arrays[f"in{k}"] for k, n in enumerate(inputs)}
            expected = {n: arrays[f"out{k}"] for k, n in enumerate(outputs)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "I139",
            f"{str(folder)!r} does not contain a partition: {reason_of(error)}",
            hint=f"clew partition writes them, with a {MANIFEST}",
        ) from error
    return Manifest(parts, inputs, outputs, given, expected)


def _check_values(
    parts: Iterable[PartEntry], inputs: Iterable[str], outputs: Iterable[str]
) -> None:
    """Raises `ValueError` if a part, or an output, reads a value that nothing before it gives."""
    known = set(inputs)
    for part in parts:
        if missing := [name for name in part.reads if name not in known]:
            raise ValueError(f"{part.file} reads {missing[0]!r}, which nothing before it gives")
        known.update(part.gives)
    if missing := [name for name in outputs if name not in known]:
        raise ValueError(f"no part gives {missing[0]!r}")


def _text(value: Any) -> str:
    """Returns a text. Raises `ValueError` for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:80]} is not a name")
    return value


def _plain_name(file: Any) -> str:
    """Returns a file's name. Raises `ValueError` if it leads out of the folder."""
    if not isinstance(file, str) or Path(file).name != file or file == "..":
        raise ValueError(f"{file!r} is not a file in the folder")
    return file


_PROGRAM: Final = '''\
#!/usr/bin/env python
"""Runs the parts of a model one after the other.

Checks that together they give the whole model's outputs, then times them. manifest.json lists what
each part reads, and has editable options of clew.compile for each: "options": {"threads": 1}.
Written by clew VERSION.

    python run.py --threads 1 --repeats 100
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import clew


def microseconds(run, repeats: int) -> float:
    times = []
    for _ in range(max(1, repeats)):
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times the parts of a model.")
    parser.add_argument("--threads", type=int, default=None, help="threads of a run; all CPUs")
    parser.add_argument("--repeats", type=int, default=20, help="timed runs")
    parser.add_argument("--opt-level", type=int, default=3, help="of the parts that are timed")
    asked = parser.parse_args()
    partition = clew.load_partition(Path(__file__).parent)
    exact = partition.check(threads=asked.threads)
    print(exact)
    deployed = partition.check(threads=asked.threads, opt_level=asked.opt_level)
    print(deployed)
    compiled = partition.compile(threads=asked.threads, opt_level=asked.opt_level)
    for stage, model in zip(partition.stages, compiled.models):
        arrays = [stage.part.inputs[name] for name in model.input_names]
        model(*arrays)
        median = microseconds(lambda: model(*arrays), asked.repeats)
        print(f"{stage.part.name}: {len(model.kernels)} kernels, median {median:.1f} µs")
    compiled.run(partition.given)
    median = microseconds(lambda: compiled.run(partition.given), asked.repeats)
    print(f"in sequence: median {median:.1f} µs of {max(1, asked.repeats)} runs")
    return 0 if exact.passed and deployed.passed else 1


if __name__ == "__main__":
    sys.exit(main())
'''
