"""The public names: which there are, and that editors, notebooks and type checkers see them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clew

NAMES = """
    __version__ Advice advise all_ops backend Backend bisect Budgets Chat check_op CheckReport
    ClewError ClewWarning compile CompiledModel CompileOptions Diagnostics diff DiffReport edit
    Editor executor_graph ExecutorGraph extern_op extract from_torch fusion generate Generation
    get_op graph_pass Inputs Kernel language_model LanguageModel LayerDiff LayerError Limits
    load load_compiled load_part load_partition LoadedModel map_files MapReport MemorySpace
    Module parse Part Partition partition Passes place Placement Precision precision_report
    PrecisionReport Profile quantize Quantized RegionPattern register_advice register_op Sample
    schedule_for Session Sizes SpecializedSizes Stream tap_states Taps Target text_encoder
    TextEncoder tune tune_report TuneReport Verdict
"""


def test_the_public_names_are_these() -> None:
    assert sorted(clew.__all__) == sorted(NAMES.split())


def test_all_are_listed_before_they_are_loaded() -> None:
    program = "import sys, clew; print(*dir(clew)); print('clew.api.compile' in sys.modules)"
    run = [sys.executable, "-c", program]
    listed, loaded = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split(
        "\n", 1
    )
    assert set(NAMES.split()) <= set(listed.split())
    assert loaded.strip() == "False"
    assert {name for name in listed.split() if not name.startswith("__")} <= set(NAMES.split())


def test_static_readers_see_each_name_where_it_comes_from() -> None:
    tree = ast.parse(Path(inspect.getfile(clew)).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    homes = {alias.asname or alias.name: n.module for n in imports for alias in n.names}
    assert set(NAMES.split()) <= set(homes)
    for name in clew.__all__:
        home = homes[name]
        assert home is not None
        found = getattr(__import__(home, fromlist=["_"]), name if name[0] != "_" else "VERSION")
        assert found is getattr(clew, name), name


def test_modules_that_the_pages_name_need_no_import() -> None:
    program = (
        "import clew; print(clew.pipelines.pipeline()[0].name, clew.te.compute.__name__, "
        "clew.patterns.is_op.__name__, clew.predict.train.__name__, clew.ops.__name__)"
    )
    run = [sys.executable, "-c", program]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["MapRows", "compute", "is_op", "train", "clew.ops"]


def test_each_name_has_a_docstring_and_help() -> None:
    for name in clew.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(clew, name)), name
    assert "Returns the model compiled for a target" in pydoc.render_doc(clew.compile)
    assert "compile" in pydoc.render_doc(clew)


def test_methods_that_load_a_room_say_what_they_return() -> None:
    assert inspect.signature(clew.CompiledModel.profile).return_annotation == "Profile"
    assert inspect.signature(clew.CompiledModel.graph).return_annotation == "ExecutorGraph"


def test_names_are_loaded_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python detects a deadlock if one thread imports a package and another a module of it."""
    inside, together = [], []

    def load(name: str) -> Any:
        inside.append(name)
        time.sleep(0.01)
        together.append(len(inside))
        inside.remove(name)
        return SimpleNamespace(compile=name, diff=name)

    monkeypatch.setattr(importlib, "import_module", load)
    kept = dict(vars(clew))
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(clew.__getattr__, ("compile", "diff", "ops")))
    finally:
        vars(clew).clear()
        vars(clew).update(kept)
    assert together == [1, 1, 1]
