"""Fails if a module of clew opens files directly.

    python tools/file_access.py

Names of files come from users, and may lead anywhere. The functions of `clew.support` (`HOMES`)
open files without waiting for pipes or reading without end; all other modules must use them, and
`os.path` to ask what there is. Calls
that look like file access but are not have an exception here, with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "clew"
HOMES: Final = tuple(
    f"support/{name}.py" for name in ("alone", "files", "folders", "system", "writing")
)
FUNCTIONS: Final = frozenset(
    (
        "open", "io.open", "codecs.open", "os.open", "os.mkfifo", "gzip.open", "tarfile.open",
        "json.load", "json.dump", "numpy.load", "numpy.save", "numpy.savez", "numpy.fromfile",
        "numpy.savez_compressed", "numpy.memmap", "numpy.loadtxt", "numpy.genfromtxt",
        "onnx.load", "onnx.load_model", "onnx.save", "onnx.save_model", "pandas.read_csv",
        "pandas.read_parquet", "pickle.load", "pickle.loads", "runpy.run_path", "shutil.copy",
        "shutil.copy2", "shutil.copyfile", "shutil.move", "zipfile.ZipFile",
    )
)  # fmt: skip
"""Functions that open a file by its name."""
MODULES: Final = ("tempfile",)
METHODS: Final = frozenset(("read_text", "read_bytes", "write_text", "write_bytes", "tofile"))
"""Methods of paths and arrays that open files, whatever they are called on."""
QUESTIONS: Final = frozenset(("exists", "is_dir", "is_file", "is_symlink"))
"""Methods of paths that raise an error for a name that is too long and for a folder that may not be
read; the functions of `os.path` answer that there is no such file."""
OF_STREAMS: Final = {"ParquetFile": 0, "write_table": 1}
"""Functions of libraries that take a file or a name, which has to be a file called `stream`."""
EXCEPTIONS: Final = {
    ("cli/help.py", "formatter.write_text"): "writes a paragraph of help",
    ("predict/predictor.py", "zipfile.ZipFile"): "writes to memory",
}


def complaints(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the line and name of each call in a module that opens a file by its name."""
    nodes = list(ast.walk(ast.parse(text)))
    names = dict(_imported(nodes))
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func, names)
        opens = name in FUNCTIONS or name.partition(".")[0] in MODULES or _is_method(node)
        if opens and (file, name) not in EXCEPTIONS:
            yield node.lineno, name


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields names of a module, with the full names they stand for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.partition(".")[0],
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the full name of a called function; for a value's method, `.` and its name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, names)
        return f"{inner}.{node.attr}"
    return ""


def _is_method(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name in OF_STREAMS:
        place = OF_STREAMS[name]
        given = call.args[place] if len(call.args) > place else None
        return not (isinstance(given, ast.Name) and given.id == "stream")
    if name in QUESTIONS:  # the functions of `os.path` have arguments, entries of folders keywords
        return not call.args and not call.keywords
    if name != "open":
        return name in METHODS
    # As paths have it: with a mode, or with nothing.
    first = call.args[0] if call.args else None
    is_mode = isinstance(first, ast.Constant) and isinstance(first.value, str)
    keywords = {k.arg for k in call.keywords}
    return is_mode or not (call.args or call.keywords) or bool(keywords & {"mode", "encoding"})


def main() -> int:
    """Prints the violations, and returns 1 if there are any."""
    wrong = 0
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if file in HOMES:
            continue
        for line, name in complaints(file, path.read_text(encoding="utf-8")):
            wrong += 1
            print(f"src/clew/{file}:{line}: {name} takes a file by name: use clew.support")
    if wrong:
        print(f"{wrong} calls; the ways are in {', '.join(HOMES)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
