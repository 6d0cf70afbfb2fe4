"""Plans: how tables are divided into parts, and the file in which a run keeps its plan.

A part is a range of rows of one file. Its result is one file, which appears only when it is
complete: so a run that was stopped continues with the missing ones, and it does not matter which
worker writes a part, or how often.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clew.support.alone import alone_in
from clew.support.errors import InputError
from clew.support.files import open_plain, read_json_file, reason_of
from clew.support.libraries import optional_library
from clew.support.writing import write_text

MANIFEST: Final = "_manifest.json"
"""Readers of folders of Parquet files skip names that begin with an underscore."""
_VERSION: Final = 1
_CHUNK_BYTES: Final = 1 << 20


def arrow(module: str = "pyarrow") -> Any:
    """Returns a module of pyarrow.

    Errors: I450 if it is not installed.
    """
    return optional_library(
        module, InputError("I450", "pyarrow is not installed", hint="pip install 'clew[map]'")
    )


@dataclass(frozen=True)
class Part:
    """A range of rows of a file, `first` to `first + rows`."""

    number: int
    file: str
    first: int
    rows: int

    def result(self, output: Path) -> Path:
        """Returns the file of its result in a folder."""
        return output / f"part-{self.number:06d}.parquet"


@dataclass(frozen=True)
class Plan:
    """The parts of a run. `subject` says what is run on what: plain values, which a later run must
    have as well to continue it.
    """

    parts: tuple[Part, ...]
    subject: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """The number of rows of all parts."""
        return sum(part.rows for part in self.parts)

    def begin(self, output: Path) -> None:
        """Writes the plan to the folder of results, or checks that the plan there is the same.

        Errors: I451 (the folder has results of another run), I452 (it cannot be read or written).
        """
        file = output / MANIFEST
        try:
            has_results = any(output.glob("part-*.parquet"))
            if has_results and not os.path.exists(file):
                raise _of_another(output, f"it has results, but no {MANIFEST}")
            if not has_results:
                write_text(file, json.dumps({"version": _VERSION, **self.subject}, indent=1))
                return
            before = read_json_file(file)
        except (OSError, ValueError) as error:
            raise _unusable(output, error) from None
        wanted = json.loads(json.dumps({"version": _VERSION, **self.subject}))
        if before == wanted:
            return
        known = before if isinstance(before, dict) else {}
        changed = [name for name in wanted if known.get(name) != wanted[name]]
        raise _of_another(output, f"{', '.join(changed) or 'its manifest'} differs")

    def missing(self, output: Path) -> Iterator[Part]:
        """Yields the parts without a complete result."""
        parquet = arrow("pyarrow.parquet")
        for part in self.parts:
            lost = contextlib.suppress(OSError, arrow().ArrowException)
            with lost, open_plain(part.result(output)) as stream:  # a pipe would block
                if parquet.read_metadata(stream).num_rows == part.rows:
                    continue
            yield part


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Creates a folder of results and keeps it from other runs: two that begin at once would not
    see each other's plan.

    Errors: I451 (another run writes to it), I452 (it cannot be created).
    """
    with contextlib.ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            is_alone = stack.enter_context(alone_in(output))
        except OSError as error:
            raise _unusable(output, error) from None
        if not is_alone:
            raise _of_another(output, "it is running")
        yield


def plan_of(files: Sequence[Path], part_rows: int, subject: Mapping[str, Any]) -> Plan:
    """Returns the plan for Parquet files, with at most `part_rows` rows in a part.

    Errors: I450 without pyarrow, I453 for a file that is not a Parquet file.
    """
    parquet = arrow("pyarrow.parquet")
    parts: list[Part] = []
    data: list[dict[str, Any]] = []
    for file in files:
        name = os.path.abspath(file)
        try:
            with open_plain(file) as stream:  # a pipe would block
                status = os.fstat(stream.fileno())
                rows = parquet.ParquetFile(stream).metadata.num_rows
        except (OSError, arrow().ArrowException) as error:
            raise InputError(
                "I453",
                f"{str(file)!r} is not a readable Parquet file: {reason_of(error)}",
                hint="convert it, for example with pyarrow or pandas",
            ) from None
        data.append({"file": name, "bytes": status.st_size, "modified_ns": status.st_mtime_ns})
        for first in range(0, rows, part_rows):
            parts.append(Part(len(parts), name, first, min(part_rows, rows - first)))
    return Plan(tuple(parts), {**subject, "part_rows": part_rows, "data": data})


def digest_of(model: Path) -> str:
    """Returns a digest of a model's file; of a folder, of the names, sizes and times of its files.

    Errors: I002 for a file that cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    try:
        if os.path.isdir(model):
            for file in sorted(path for path in model.rglob("*") if os.path.isfile(path)):
                status = file.stat()
                name = file.relative_to(model).as_posix()
                found.update(f"{name}|{status.st_size}|{status.st_mtime_ns}|".encode())
        else:
            with open_plain(model) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.update(chunk)
    except OSError as error:
        raise InputError("I002", f"cannot read {str(model)!r}: {reason_of(error)}") from None
    return found.hexdigest()


def _unusable(output: Path, error: Exception) -> InputError:
    return InputError("I452", f"cannot use the folder {str(output)!r}: {reason_of(error)}")


def _of_another(output: Path, why: str) -> InputError:
    return InputError(
        "I451",
        f"the folder {str(output)!r} belongs to another run: {why}",
        hint="choose another folder, or remove this one",
    )
