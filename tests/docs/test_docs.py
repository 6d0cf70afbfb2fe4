"""The documents' code runs, their links lead somewhere, and their lists are those of the source."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import errors
import exactness
import policy
import weave
from clew.machine.target import host
from clew.ops import registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
GUIDES = [
    ROOT / "docs" / f"adding-{what}.md"
    for what in ("an-op", "a-pass", "a-schedule", "a-backend", "a-format")
]
GUIDES.append(ROOT / "docs" / "vta.md")
GUIDES += sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def blocks(page: Path, language: str) -> list[str]:
    """Returns a page's code blocks of a language, without the indentation of lists."""
    found = _FENCE.findall(page.read_text())
    return [textwrap.dedent(code) for _, name, code in found if name == language]


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own: what it registers stays there."""
    (folder / "program.py").write_text(code)
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# What `pip install clew` does not bring, by the names that are imported.
EXTRAS = ("pandas", "pyarrow", "sklearn", "onnxruntime", "openvino", "torch", "PIL", "re2")
_WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS!r}))\n"
# What is measured shows nothing here, so it is measured as briefly as can be.
_BRIEF = (
    "import clew.compare.times, clew.profile.modes\n"
    "clew.compare.times._SECONDS = clew.profile.modes._SAMPLE_SECONDS = 0.05\n"
)
_USED = f"import sys\nprint('used', *(n for n in {EXTRAS!r} if sys.modules.get(n)))\n"


_INSTALL = "pip install 'clew["


def code_of(page: Path) -> str:
    """Returns a guide's program."""
    code = "\n".join(blocks(page, "python"))
    return f"{_BRIEF}{code}" if ".profile(" in code or ".diff(" in code else code


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.stem)
def test_the_code_of_a_guide_is_a_program_that_runs(page: Path, tmp_path: Path) -> None:
    done = run(tmp_path, f"{code_of(page)}\n{_USED}")
    assert done.returncode == 0, done.stderr[-3000:]
    used = done.stdout.splitlines()[-1].split()[1:]
    if used:
        assert _INSTALL in page.read_text(), f"it uses {used}, and does not say so"


# One that goes without, and one that does not. The others are exhaustive: they run a second time.
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.stem,
            marks=[] if page.stem in ("diff", "pytorch") else [pytest.mark.exhaustive],
        )
        for page in GUIDES
        if _INSTALL in page.read_text()
    ],
)
def test_a_guide_goes_without_what_more_is_installed_or_says_so(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    done = run(tmp_path, f"{_WITHOUT}{code_of(page)}")
    if done.returncode:  # it needs it from its first lines on
        assert _INSTALL in done.stderr
        assert f"needs `{_INSTALL}" in " ".join(text.partition("```")[0].split())


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["input", "w"], ["y"], name="conv1")],
        "one",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx"
    )
    x = "import numpy\nx = numpy.ones((1, 3, 8, 8), 'f4')\n"
    (block,) = blocks(ROOT / "README.md", "python")
    done = run(tmp_path, x + block)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("conv1 (Conv)")


def test_the_page_of_errors_is_what_the_source_raises() -> None:
    assert errors.PAGE.read_text() == errors.page(), "run python tools/errors.py"


def test_the_page_of_exactness_is_what_rules_state() -> None:
    assert exactness.PAGE.read_text() == exactness.page(), "run python tools/exactness.py"


def test_the_page_of_thresholds_is_what_the_policy_states() -> None:
    assert policy.PAGE.read_text() == policy.page(), "run python tools/policy.py"


def test_the_page_from_scratch_is_what_its_program_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    page, made = weave.PAGE.read_text(), weave.page()
    if host().vector_bits != 512:  # the page shows instructions of such a machine
        page, made = (_FENCE.sub(_code_only, text) for text in (page, made))
    assert page == made, "run python tools/weave.py"


def _code_only(block: re.Match[str]) -> str:
    return block[0] if block[2] else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(prose(page)):
        if "://" not in target:
            file = (page.parent / target) if target else page
            assert file.exists(), f"{page.name} links to {target}"
            if anchor and file.suffix == ".md":
                assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:src|tests|tools|docs|benchmarks|changelog\.d)/[\w./-]+)`", page.read_text()
    )
    assert [n for n in named if not (ROOT / n).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_files_that_a_page_names_by_a_part_of_their_path_exist(page: Path) -> None:
    named = re.findall(r"`([\w-]+/[\w/.-]+\.(?:py|ts))`", page.read_text())
    assert sorted(set(named) - source_files()) == []


@cache
def source_files() -> frozenset[str]:
    """Returns the paths of the source files, also without their first folders."""
    found = [
        path.relative_to(ROOT).parts
        for folder in (
            "src",
            "tools",
            "tests",
            "benchmarks",
            "docs",
            "site",
            "frontend/src",
            "frontend/test",
        )
        for ending in ("py", "ts")
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    return frozenset("/".join(parts[n:]) for parts in found for n in range(len(parts)))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_dotted_names_of_clew_that_a_page_names_exist(page: Path) -> None:
    named = {m.rstrip(".") for m in re.findall(r"\bclew(?:\.[A-Za-z_]\w*)+", prose(page))}
    assert sorted(name for name in named - _METADATA_KEYS if not exists(name)) == []


# Pages with names that are composed (features, states) or belong to TVM.
_OTHER_NAMES = ("predict", "profile", "sessions", "from-relay")
_EXAMPLES = {"size_batch"}
_OF_TORCH = {"preserve_module_call_signature", "swap_tensors"}
_METADATA_KEYS = {"clew.notes", "clew.recipe"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_identifiers_that_a_page_names_are_in_the_sources(page: Path) -> None:
    if page.stem in _OTHER_NAMES:
        return
    examples = words("\n".join(m[2] for m in _FENCE.findall(page.read_text())))
    spans = re.findall(r"`@?([A-Za-z_][\w.]*)(?:\([^`\n]*\))?`", prose(page))
    named = {part for span in spans if not span.endswith(".py") for part in span.split(".")}
    compound = {name for name in named if "_" in name.strip("_") or re.search("[a-z][A-Z]", name)}
    stems = {re.sub(r"_\d+$", "", name): name for name in compound}  # numbered kernels and layers
    known = source_words() | examples | _EXAMPLES | _OF_TORCH
    assert sorted(name for stem, name in stems.items() if not {stem, name} & known) == []


_READERS = {
    "open_plain", "read_bytes", "read_text", "read_json_file", "run_program", "Archive",
    "open_database", "read_array",
}  # fmt: skip
# Files of clew's own package.
_OWN_FILES = {"explorer/bundle.py", "runner/machine.py"}


def test_the_page_of_safety_names_every_module_that_reads_files() -> None:
    package = ROOT / "src" / "clew"
    importing = re.compile(r"^from clew\.support\.(?:files|archives|databases) import (.+)$", re.M)
    reading = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for names in importing.findall(file.read_text())
        if words(names) & _READERS
    }
    page = (ROOT / "docs" / "safety.md").read_text()
    outside = {name for name in reading - _OWN_FILES if not name.startswith("support/")}
    assert len(outside) > 20
    assert sorted(name for name in outside if f"`{name}`" not in page) == []


def prose(page: Path) -> str:
    """Returns the text of a page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def words(text: str) -> set[str]:
    """Returns the identifiers in a text."""
    return set(re.findall(r"[A-Za-z_]\w*", text))


def exists(name: str) -> bool:
    """Whether a dotted name is a module of clew, or an attribute of one or of its classes."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", {}):  # a field without a default
                return True
            found = getattr(found, part, None)
        return found is not None
    return False


@cache
def source_words() -> frozenset[str]:
    """Returns the identifiers in the source files and in the configuration."""
    folders = ("src", "tools", "tests", "benchmarks", "docs", "frontend/src", "frontend/test")
    endings = (".py", ".ts", ".json", ".html", ".css")
    files = [ROOT / "pyproject.toml", ROOT / "Makefile"]
    for folder in folders:
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in endings and p.is_file()]
    this = Path(__file__)
    return frozenset(
        word
        for file in files
        if file != this and "static" not in file.parts
        for word in words(file.read_text(errors="ignore"))
    )


def test_the_source_map_names_files_of_its_folders() -> None:
    package = ROOT / "src" / "clew"
    missing = []
    for section in re.split("^## ", (ROOT / "docs" / "source-map.md").read_text(), flags=re.M)[1:]:
        title = section.splitlines()[0]
        folders = [package / name for name in re.findall(r"`(\w+)/`", title)]
        for name in re.findall(r"`([\w/.-]+(?:\.py|\.ts|/))`", section):
            places = [*folders, package, ROOT, ROOT / "frontend" / "src"]
            if not any((place / name).exists() for place in places) and not any(
                list(folder.rglob(name.rstrip("/"))) for folder in folders
            ):
                missing.append(f"{title}: {name}")
    assert missing == []


def test_every_folder_of_the_package_is_in_the_source_map() -> None:
    text = (ROOT / "docs" / "source-map.md").read_text()
    folders = [p.parent.name for p in (ROOT / "src" / "clew").glob("*/__init__.py")]
    assert [f for f in folders if not re.search(rf"^## .*`{f}/`", text, re.M)] == []


def test_every_folder_of_the_package_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = [p.parent.name for p in (ROOT / "src" / "clew").glob("*/__init__.py")]
    assert folders
    assert [f for f in folders if f"`{f}/`" not in text] == []
