"""Output of the commands: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from clew.support.consoles import VisibleConsole
from clew.support.errors import InputError
from clew.support.files import reason_of
from clew.support.tables import table
from clew.support.unseen import UNSEEN, visible
from clew.support.writing import write_array

# The width of stdout if it is not a terminal.
_PIPED_COLUMNS = 120


def stdout() -> VisibleConsole:
    """Returns the console for data."""
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    return VisibleConsole(width=width, highlight=False)


def columns() -> int:
    """Returns the number of characters in a line of data."""
    return stdout().width


def stderr() -> VisibleConsole:
    """Returns the console for progress, notes and errors."""
    return VisibleConsole(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Prints a line about the work to stderr."""
    stderr().print(Text(text, style="dim"))


@contextmanager
def progress(text: str) -> Iterator[Any]:
    """Shows a status line if stderr is a terminal; yields the function that updates it."""
    with stderr().status(text) as status:
        yield lambda message: status.update(Text(message))


def emit_json(value: Any) -> None:
    """Prints a value as JSON to stdout. Infinities and NaN, which JSON lacks, become null."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def emit_text(text: str) -> None:
    """Prints formatted text to stdout."""
    print(visible(text))


def emit_json_text(text: str) -> None:
    """Prints JSON text to stdout: the same value, without invisible characters."""
    print(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text))


def plain(value: Any) -> Any:
    """Returns a value as JSON can hold it: infinities and NaN as None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def flat(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns outputs by name. Sequences are expanded to `name[0]`, `name[1]`; None is left out."""
    found: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, (list, tuple)):
            found.update(flat({f"{name}[{n}]": v for n, v in enumerate(value)}))
        elif value is not None:
            found[name] = value
    return found


def describe(name: str, value: Any) -> dict[str, Any]:
    """Returns an output's name, dtype, shape, and least, largest and mean value."""
    array = np.asarray(value)
    facts: dict[str, Any] = {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiub":
        wide = array.astype(np.float64)
        facts |= {"min": wide.min(), "max": wide.max(), "mean": wide.mean()}
    return facts


def save_arrays(folder: Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays as `.npy` files named after them.

    Errors: I063 if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in arrays.items():
            safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
            write_array(folder / f"{safe}.npy", value)
    except OSError as error:
        raise InputError("I063", f"cannot write to {str(folder)!r}: {reason_of(error)}") from None


def outputs_table(outputs: Sequence[Mapping[str, Any]], what: str = "output") -> Table:
    """Returns a table of the facts from `describe`."""
    made = table(what, "type", "min", "max", "mean", right=("min", "max", "mean"))
    for facts in outputs:
        dims = ", ".join(map(str, facts["shape"]))
        numbers = [f"{facts[k]:.6g}" if k in facts else "" for k in ("min", "max", "mean")]
        made.add_row(Text(facts["name"]), Text(f"{facts['dtype']}[{dims}]"), *numbers)
    return made


def kernels_table(kernels: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table of kernels, with times if they were measured."""
    timed = any("median_ns" in k for k in kernels)
    saved = any("code_bytes" not in k for k in kernels)
    columns = ["kernel", "layers, in order"]
    columns += [] if saved else ["rule", "code"]
    columns += ["µs", "share"] if timed else []
    made = table(*columns, right=("code", "µs", "share"))
    for kernel in kernels:
        row: list[str | Text] = [Text(kernel["name"]), Text(", ".join(kernel["layers"]))]
        if not saved:
            row += [Text(", ".join(kernel["rules"])), f"{kernel['code_bytes'] / 1024:.1f} kB"]
        if timed:
            row += [f"{kernel['median_ns'] / 1e3:.1f}", f"{100 * kernel['share']:.1f} %"]
        made.add_row(*row)
    return made


def regions_table(regions: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table of the regions that other backends run."""
    made = table("region", "backend", "layers, in order")
    for region in regions:
        row = region["name"], region["backend"], ", ".join(region["layers"])
        made.add_row(*map(Text, row))
    return made


def region_facts(model: Any) -> list[dict[str, Any]]:
    """Returns facts about the regions of a compiled model for tables and JSON; none for a saved
    one.
    """
    return [
        {"name": r.name, "backend": r.backend, "layers": list(r.layers), "ops": r.ops}
        for r in getattr(getattr(model, "template", None), "regions", ())
    ]


def kernel_facts(kernel: Any) -> dict[str, Any]:
    """Returns a kernel's facts for tables and JSON; fewer for one that an older version saved."""
    facts = {"name": kernel.name, "layers": list(kernel.layers), "ops": list(kernel.ops)}
    code = len(kernel.object_code) if hasattr(kernel, "object_code") else kernel.code_bytes
    return {**facts, "rules": list(kernel.rules), "code_bytes": code} if code else facts
