"""The check of imports: it finds circles, imports by name and stray libraries, and none in clew."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import import_circles


def package(folder: Path, **files: str) -> Path:
    """Writes a package `made` whose files are named `a`, or `sub_b` for `sub/b.py`."""
    root = folder / "made"
    for name, text in {"__init__": "", "sub___init__": "", **files}.items():
        place, _, rest = name.partition("sub_")
        file = root / "sub" / f"{rest}.py" if not place and rest else root / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def found(folder: Path, **files: str) -> list[str]:
    return list(import_circles.complaints(package(folder, **files), {}))


def test_a_circle_is_found_with_its_imports(tmp_path: Path) -> None:
    (said,) = found(
        tmp_path,
        a="import made.b\nimport made.c",
        b="from made import c",
        c="x = 1\nfrom made.sub.d import y",
        sub_d="from ..b import z",
        outside="from made import a",
    )
    assert said.splitlines() == [
        "3 files import each other:",
        "    made.b:1 imports made.c",
        "    made.c:2 imports made.sub.d",
        "    made.sub.d:1 imports made.b",
    ]


@pytest.mark.parametrize(
    "back",
    [
        "import made.a", "from made import a", "from made.a import x", "from . import a",
        "from .a import x", "def f():\n    from made.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.a import x",
        "try:\n    import made.a as other\nexcept ImportError:\n    pass",
    ],
)  # fmt: skip
def test_every_kind_of_import_counts(back: str, tmp_path: Path) -> None:
    (said,) = found(tmp_path, a="from made.b import y", b=back)
    assert said.startswith("2 files import each other:")


def test_a_package_runs_before_its_modules(tmp_path: Path) -> None:
    files = {"a": "import made.sub.d", "sub_d": "", "sub___init__": "from made import a"}
    (said,) = found(tmp_path, **files)
    _, first, second = said.splitlines()
    assert (first, second) == ("    made.a:1 imports made.sub", "    made.sub:1 imports made.a")


def test_two_circles_are_two(tmp_path: Path) -> None:
    said = found(
        tmp_path, a="import made.b", b="import made.a\nimport made.c", c="import made.d",
        d="import made.c",
    )  # fmt: skip
    assert [s.partition("\n")[0] for s in said] == ["2 files import each other:"] * 2


@pytest.mark.parametrize(
    "files",
    [
        {"a": "import made.b\nimport made.c", "b": "import made.c"},
        {"sub___init__": "import made.sub.d", "sub_d": "from made.sub import e", "sub_e": ""},
        {"a": "import a\nfrom b import made"},
    ],
)
def test_what_is_no_circle(files: dict[str, str], tmp_path: Path) -> None:
    assert not found(tmp_path, **files)


@pytest.mark.parametrize(
    "line",
    [
        "importlib.import_module('made')", "import_module('made.a')", "__import__('made.a')",
        "importlib.import_module(f'made.{name}')", "importlib.import_module(name)",
        "importlib.import_module(name='made.a')",
        "importlib.import_module('.a', 'made')",
    ],
)  # fmt: skip
def test_imports_by_name(line: str) -> None:
    assert len(list(import_circles.by_name("made", ast.parse(line)))) == 1


@pytest.mark.parametrize("line", ["importlib.import_module('numpy')", "__import__('madeira')"])
def test_other_libraries_may_be_imported_by_name(line: str) -> None:
    assert not list(import_circles.by_name("made", ast.parse(line)))


def test_exceptions_must_be_needed(tmp_path: Path) -> None:
    root = package(tmp_path, a="__import__(name)", b="")
    exceptions = dict.fromkeys(("made.a", "made.b", "made.c"), "a reason")
    assert list(import_circles.complaints(root, exceptions)) == [
        "there is no module made.c: it needs no exception",
        "made.b imports no module by its name: it needs no exception",
    ]


@pytest.mark.parametrize("line", ["import onnx", "from onnx.helper import f", "import onnx.defs"])
def test_libraries_of_formats_have_a_home(line: str) -> None:
    tree = ast.parse(line)
    assert len(list(import_circles.libraries("clew.explorer.views", tree))) == 1
    assert len(list(import_circles.libraries("clew.frontends.text", tree))) == 1
    assert not list(import_circles.libraries("clew.frontends.onnx.file.loader", tree))
    assert not list(import_circles.libraries("clew.exporters.onnx.writer", tree))


@pytest.mark.parametrize(
    "line", ["from clew.frontends import onnx", "from clew.frontends.onnx.names import display"]
)
def test_readers_have_one_door(line: str) -> None:
    tree = ast.parse(line)
    assert len(list(import_circles.libraries("clew.extraction.part", tree))) == 1
    assert not list(import_circles.libraries("clew.frontends.formats", tree))
    assert not list(import_circles.libraries("clew", tree))


def test_suffixes_have_a_home() -> None:
    tree = ast.parse('if path.suffix == ".onnx":\n    print("model.onnx")')
    assert [line for line, *_ in import_circles.suffixes("clew.cli.app", tree)] == [1]
    assert not list(import_circles.suffixes("clew.frontends.onnx.format", tree))


def test_libraries_of_like_names_are_others() -> None:
    assert not list(import_circles.libraries("clew.bench", ast.parse("import onnxruntime")))


@pytest.mark.exhaustive  # `make lint` checks it, too
def test_clew_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_circles.main() == 0, capsys.readouterr().out
    files = import_circles.modules(import_circles.SOURCE)
    trees = {"clew.serving.making": ast.parse(files["clew.serving.making"].read_text())}
    assert "clew.build.build" in import_circles.imports(files, trees)["clew.serving.making"]
    assert len(files) > 500
