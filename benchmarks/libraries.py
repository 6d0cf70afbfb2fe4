"""Exports models as C libraries for this machine, compiles each with its example program by gcc and
clang without warnings, runs it, and compares the outputs with those of the compiled model, bit by
bit.

`python benchmarks/libraries.py [--models NAME ...] [--files FILE ...] [--minutes N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
import zoo
from emulators import STRICT

Array = np.ndarray[Any, Any]
_COMPILERS: Final = ("gcc", "clang")
_EQUAL: Final = "equal bits"


def _compared(source: str, feed: dict[str, Array] | None, folder: Path) -> str:
    """Returns how the outputs of a model's library differ from those of the compiled model."""
    options: dict[str, Any] = {}
    if feed is not None:
        options["inputs"] = {name: np.shape(array) for name, array in feed.items()}
    model = clew.compile(source, threads=1, **options)
    drawn = dict(zip(model.input_names, model.drawn(seed=1), strict=True)) | (feed or {})
    specs = zip(model.input_names, model.inputs, strict=True)
    inputs = {name: np.asarray(drawn[name], spec.dtype) for name, spec in specs}
    wanted = model.run(inputs)
    made = model.export_c(folder, "net", state={})
    given = [f"in{n}.bin" for n in range(len(inputs))]
    for file, array in zip(given, inputs.values(), strict=True):
        np.ascontiguousarray(array).tofile(folder / file)
    for compiler in _COMPILERS:
        results = [f"{compiler}{n}.bin" for n in range(len(wanted))]
        sources = ["main.c", f"lib{made.prefix}.a", "-lm", "-o", compiler]
        for command in ([compiler, *STRICT, *sources], [f"./{compiler}", *given, *results]):
            found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if found.returncode:
                return f"FAILED: {command[0]} {found.returncode} {found.stderr[:200]}"
        for file, (name, array) in zip(results, wanted.items(), strict=True):
            if (folder / file).read_bytes() != np.asarray(array).tobytes():
                return f"WRONG: {name} by {compiler}"
    return _EQUAL


def main() -> int:
    """Prints a line for each model, and their number by outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--files", nargs="+", type=Path, default=[])
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = sorted(zoo.names()) if args.models is None else args.models
    chosen = {str(file): file for file in args.files} | dict.fromkeys(names)
    end, said = time.monotonic() + 60 * args.minutes, dict[str, str]()
    for name, file in chosen.items():
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                source = str(file) if file else str(zoo.path(name))
                said[name] = _compared(source, None if file else zoo.inputs(name), Path(folder))
            except clew.ClewError as error:
                said[name] = f"REFUSED: {str(error).splitlines()[0]}"
        print(f"{Path(name).stem:32} {said[name]}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(said, indent=1) + "\n")
    counts = Counter(text.partition(":")[0] for text in said.values())
    print(", ".join(f"{count} {text}" for text, count in counts.items()))
    print(f"{len(chosen) - len(said)} not tried")
    return int(any(text.startswith(("WRONG", "FAILED")) for text in said.values()))


if __name__ == "__main__":
    sys.exit(main())
