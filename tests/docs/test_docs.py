"""The documents' code runs, their links lead somewhere, and their lists are those of the source."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

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
    ROOT / "docs" / f"adding-{what}.md" for what in ("an-op", "a-pass", "a-schedule", "a-backend")
]
GUIDES.append(ROOT / "docs" / "vta.md")
GUIDES += sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


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
        assert f"needs `{_INSTALL}" in text.partition("```")[0]


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
    for target in _LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


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
            "frontend/src",
            "frontend/test",
        )
        for ending in ("py", "ts")
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    return frozenset("/".join(parts[n:]) for parts in found for n in range(len(parts)))


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
