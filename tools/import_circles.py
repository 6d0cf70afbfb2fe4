"""Fails if files of clew import each other in a circle, or import modules that no checker sees.

    python tools/import_circles.py

Every import counts, also those inside functions and under `TYPE_CHECKING`. Imports of modules by
name (`importlib.import_module("clew.x")`) are invisible to the type check and to the layers in
`pyproject.toml`; `BY_NAME` has the remaining ones, each with its reason. Only a model format's
folders may use its reader and the libraries behind it (`HOMES`), or name the suffix of its files
(`SUFFIXES`): all else asks `clew.frontends.formats`.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "clew"
_ONNX: Final = ("clew.frontends.onnx", "clew.exporters.onnx")
_TORCH: Final = ("clew.frontends.torch", "clew.frontends.pt2", "clew.torch")
_TFLITE: Final = ("clew.frontends.tflite",)
HOMES: Final = {
    "onnx": _ONNX,
    "onnx_ir": _ONNX,
    "onnxruntime": (*_ONNX, "clew.backends", "clew.bench"),
    "torch": (*_TORCH, "clew.backends.torch", "clew.support"),
    # The predictor is trained with networks that it makes as ONNX messages.
    "clew.frontends.onnx": (*_ONNX, "clew.frontends.formats", "clew.predict"),
    # GGUF files have the decoders of these folders.
    "clew.frontends.checkpoint": (
        "clew.frontends.checkpoint",
        "clew.frontends.gguf",
        "clew.frontends.formats",
    ),
    "clew.frontends.gguf": ("clew.frontends.gguf", "clew.frontends.formats"),
    "clew.frontends.tflite": (*_TFLITE, "clew.frontends.formats"),
    "clew.frontends.torch": (*_TORCH, "clew.backends.torch"),
    "clew.frontends.pt2": (*_TORCH, "clew.frontends.formats"),
}
"""Modules that only files below some packages may import."""
SUFFIXES: Final = {
    ".onnx": _ONNX,
    ".pt2": _TORCH,
    ".tflite": _TFLITE,
    ".gguf": ("clew.frontends.gguf",),
}
"""Suffixes that only files below some packages may name."""
BY_NAME: Final = {
    "clew.cli.program": "after it has prepared for Ctrl-C",
    "clew.cli.app": "commands load when they are named",
    "clew": "public names load when first used; the block for the type check has all of them",
    "clew.cli.extract": "a module of the user's, which has a pattern",
    "clew.support.libraries": "libraries that clew can do without",
}
"""Modules that import modules by names that are computed, and why."""
_IMPORTING: Final = ("import_module", "__import__")

Graph = Mapping[str, Mapping[str, int]]
"""The modules that a module imports, each with a line that does so."""


def modules(folder: Path) -> dict[str, Path]:
    """Returns the files of a package by the full names of their modules."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(files: Mapping[str, Path], trees: Mapping[str, ast.Module]) -> Graph:
    """Returns the imports between the modules of a package.

    An import of a module also imports the packages that contain it, except those that contain the
    importing module itself.
    """
    graph: dict[str, dict[str, int]] = {}
    for module, tree in trees.items():
        found = graph[module] = {}
        for name, line in _imported(tree, module, _is_package(files[module])):
            nearest = _nearest(name, files)
            outer = nearest.rpartition(".")[0] if nearest is not None else ""
            while outer and not _within(module, outer):
                found.setdefault(outer, line)
                outer = outer.rpartition(".")[0]
            if nearest is not None and nearest != module:
                found.setdefault(nearest, line)
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Returns the sets of modules that can all reach each other (the graph's strongly connected
    components) with more than one module, each sorted.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for root in graph:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        work = [(root, iter(graph[root]))]
        while work:
            module, rest = work[-1]
            other = next(rest, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == order[module]:
                    at = stack.index(module)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
            elif other not in order:
                order[other] = low[other] = len(order)
                stack.append(other)
                work.append((other, iter(graph[other])))
            elif other in stack:
                low[module] = min(low[module], order[other])
    return sorted(found)


def by_name(package: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and argument of each call that imports a module by its name, if the module is
    in this package or the name is computed.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in _IMPORTING:
            continue
        name = node.args[0] if node.args else None
        is_other = (
            isinstance(name, ast.Constant)
            and isinstance(name.value, str)
            and not name.value.startswith(".")
            and not _within(name.value, package)
        )
        if not is_other:
            yield node.lineno, ast.unparse(name) if name is not None else ""


def libraries(
    module: str, tree: ast.Module, homes: Mapping[str, tuple[str, ...]] = HOMES
) -> Iterator[tuple[int, str, str]]:
    """Yields the line and name of each import of a module outside its home, and the home. The
    public names in `clew` itself may be of any module.
    """
    for name, line in _imported(tree, module, False) if module != "clew" else ():
        home = next((homes[each] for each in homes if _within(name, each)), None)
        if home is not None and not any(_within(module, package) for package in home):
            yield line, name, " and ".join(home)


def suffixes(
    module: str, tree: ast.Module, homes: Mapping[str, tuple[str, ...]] = SUFFIXES
) -> Iterator[tuple[int, str, str]]:
    """Yields the line and text of each suffix of a format outside its home, and the home."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        home = homes.get(node.value)
        if home is not None and not any(_within(module, package) for package in home):
            yield node.lineno, node.value, " and ".join(home)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _is_package(file: Path) -> bool:
    return file.name == "__init__.py"


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields all statements. Most of the nodes are in expressions, which have no statements."""
    rest: deque[ast.AST] = deque([tree])
    while rest:
        node = rest.popleft()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            rest += getattr(node, part, ())


def _imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Yields the full names that a module imports, and their lines."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _nearest(name: str, files: Iterable[str]) -> str | None:
    """Returns the module with a full name, or the one that contains it."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name or None


def complaints(folder: Path, exceptions: Mapping[str, str] = BY_NAME) -> Iterator[str]:
    """Yields the violations in a package. `exceptions` are modules that import modules by name; an
    unused exception is a violation, too.
    """
    files = modules(folder)
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    trees = {name: ast.parse(text, str(files[name])) for name, text in texts.items()}
    graph = imports(files, trees)
    for gone in sorted(exceptions.keys() - files.keys()):
        yield f"there is no module {gone}: it needs no exception"
    for circle in circles(graph):
        edges = [
            f"    {name}:{line} imports {other}"
            for name in circle
            for other, line in graph[name].items()
            if other in circle
        ]
        yield "\n".join([f"{len(circle)} files import each other:", *edges])
    for module, tree in trees.items():
        calls = any(word in texts[module] for word in _IMPORTING)
        found = list(by_name(folder.name, tree)) if calls else []
        if module in exceptions and not found:
            yield f"{module} imports no module by its name: it needs no exception"
        for line, name in found if module not in exceptions else ():
            yield f"{module}:{line} imports a module by its name: {name}"
        for line, name, home in libraries(module, tree):
            yield f"{module}:{line} imports {name}, which only {home} may"
        named = any(suffix in texts[module] for suffix in SUFFIXES)
        for line, name, home in suffixes(module, tree) if named else ():
            yield f"{module}:{line} names {name}, which only {home} may"


def main() -> int:
    """Prints the violations, and returns 1 if there are any."""
    wrong = list(complaints(SOURCE))
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
