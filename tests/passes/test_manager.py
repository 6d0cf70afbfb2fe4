from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.printer import print_module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.instruments import PrintIR, Timing
from clew.passes.manager import PassManager
from clew.passes.reproducers import keep_reproducer
from clew.passes.verify import verify
from clew.pipelines import pipeline
from clew.support.errors import CompileError, GraphTypeError, InputError
from clew.support.settings import settings


class _Renamer(Rewriter):
    def __init__(self, old: str, new: str, ctx: PassContext) -> None:
        super().__init__()
        self.names = old, new
        self.ctx = ctx

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.op_name != self.names[0]:
            return new
        self.ctx.remark(old, f"is {self.names[1]} now")
        return get_op(self.names[1])(*new.args)


@dataclass(frozen=True)
class Rename(Pass):
    """Replaces one operator by another."""

    old: str = "exp"
    new: str = "log"

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Renamer(self.old, self.new, ctx).rewrite_module(module)


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    opt_level = 2

    def run(self, module: Module, ctx: PassContext) -> Module:
        raise ZeroDivisionError("by design")


@dataclass(frozen=True)
class Leaky(Pass):
    """Builds a function that uses a variable of nobody's."""

    def run(self, module: Module, ctx: PassContext) -> Module:
        stray = Var("stray", TensorType((2,), "f32"))
        return Module({"main": Function([], Tuple([stray]), module.main.attrs)})


@pytest.fixture
def given(kit: Any) -> Module:
    x = kit.var("x", 4)
    return kit.module([x], kit.layer("sin", kit.layer("exp", x)))


def test_stages_tell_what_each_pass_did(given: Module) -> None:
    manager = PassManager([Rename(), Rename("cos", "sin")])
    result = manager.run(given)
    assert [s.name for s in manager.stages] == ["import", "Rename", "Rename"]
    first, second = manager.stages[1:]
    assert first.module is result
    assert second.module is result
    exp, log = (m.main.body.fields[0].args[0] for m in (given, result))
    assert (exp.op_name, log.op_name) == ("exp", "log")
    assert first.same[exp.id] == log.id
    assert first.lineage is not None
    assert first.lineage.origins[log.id] == (exp.id,)
    assert exp.id in first.difference.removed
    assert log.id in first.difference.added
    assert given.main.params[0].id in first.difference.kept
    assert [(r.node_id, r.pass_name, r.text) for r in first.remarks] == [
        (exp.id, "Rename", "is log now")
    ]
    assert not second.changed
    assert not second.difference.added
    assert first.seconds > 0


def test_without_the_trace_the_module_is_the_same(given: Module) -> None:
    texts = []
    for trace in (True, False):
        manager = PassManager([Rename()], trace=trace)
        texts.append(print_module(manager.run(given)))
        assert (manager.stages[1].lineage is not None) == trace
    assert texts[0] == texts[1]


def test_levels_and_names_choose_passes() -> None:
    both: list[Pass] = [Rename(), Broken()]

    def chosen(*args: Any, **options: Any) -> list[str]:
        return [p.name for p in PassManager(both, *args, **options).passes]

    assert chosen(1) == ["Rename"]
    assert chosen(2) == ["Rename", "Broken"]
    assert chosen(0) == []
    assert chosen(0, required=["Broken"]) == ["Broken"]
    assert chosen(3, disabled=["Broken"]) == ["Rename"]


@pytest.mark.parametrize("option", ["required", "disabled"])
def test_unknown_names_are_listed(option: str) -> None:
    with pytest.raises(InputError) as caught:
        PassManager([Rename()], **{option: ["Renam", "Rename", "Folding"]})  # type: ignore[arg-type]
    assert caught.value.code == "I020"
    assert "Folding, Renam" in caught.value.message
    assert "Rename" in caught.value.hint


def test_a_failing_pass_leaves_a_reproducer(given: Module, tmp_path: Path) -> None:
    manager = PassManager([Rename(), Broken(), Rename("sin", "cos")], reproducers=tmp_path)
    with pytest.raises(CompileError, match="Broken failed: ZeroDivisionError: by design") as caught:
        manager.run(given)
    (folder,) = tmp_path.iterdir()
    assert caught.value.code == "C080"
    assert str(folder) in caught.value.hint
    assert "= log(" in (folder / "module.clew").read_text()
    assert (folder / "pipeline.txt").read_text().splitlines() == [
        "Broken()",
        "Rename(old='sin', new='cos')",
        "opt_level=3",
    ]
    assert "ZeroDivisionError" in (folder / "error.txt").read_text()


def test_the_same_failure_has_one_reproducer(given: Module, tmp_path: Path) -> None:
    """Each failing call left a folder of its own, without end."""
    folders = set()
    for _ in range(3):
        with pytest.raises(CompileError) as caught:
            PassManager([Broken()], reproducers=tmp_path).run(given)
        folders.add(caught.value.hint)
    (folder,) = tmp_path.iterdir()
    assert folders == {f"this is a bug in the pass; {folder} holds a reproducer"}


def test_reproducers_are_bounded(given: Module, tmp_path: Path) -> None:
    """The ones used last are kept, and whatever else lies there."""
    (tmp_path / "mine").mkdir()
    first = keep_reproducer("First", {"error.txt": "0"}, tmp_path)
    for number in range(40):
        keep_reproducer("Other", {"error.txt": str(number)}, tmp_path)
        os.utime(first)
    names = {f.name for f in tmp_path.iterdir()}
    assert len(names) == 21
    assert {"mine", first.name} < names
    again = keep_reproducer("Other", {"error.txt": "39"}, tmp_path)
    assert again.name in names
    assert (again / "error.txt").read_text() == "39"


def test_reproducers_lie_in_the_cache(given: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache, or one that takes nothing, in a folder of this process."""
    found = keep_reproducer("Some", {"error.txt": "sizes ?12"})
    assert found.parent == settings().cache_dir / "reproducers"
    assert keep_reproducer("Some", {"error.txt": "sizes ?34"}) == found
    monkeypatch.setenv("CLEW_CACHE", "0")
    assert keep_reproducer("Some", {"error.txt": "sizes ?34"}).parent != found.parent
    monkeypatch.delenv("CLEW_CACHE")
    monkeypatch.setenv("CLEW_CACHE_DIR", "/dev/null")
    assert (keep_reproducer("Some", {"error.txt": "?"}) / "error.txt").read_text() == "?"


def test_a_pass_that_breaks_the_module_is_caught(given: Module, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="stray, which is neither parameter nor bound"):
        PassManager([Leaky()], reproducers=tmp_path).run(given)


def test_user_errors_pass_through_with_the_pass_named(given: Module) -> None:
    with pytest.raises(GraphTypeError) as caught:
        PassManager([Rename("exp", "add")]).run(given)
    assert caught.value.pass_name == "Rename"
    assert caught.value.layer == "exp_1"


def test_instruments_are_told(given: Module) -> None:
    stream, timing, seen = io.StringIO(), Timing(), []

    class Names:
        def before_pass(self, name: str, module: Module) -> None:
            seen.append(name)

    manager = PassManager(
        [Rename(), Rename("nothing", "abs")], instruments=[Names(), PrintIR(stream=stream), timing]
    )
    manager.run(given)
    assert seen == ["Rename", "Rename"]
    assert stream.getvalue().count("// after") == 1
    assert "= log(" in stream.getvalue()
    assert list(timing.seconds) == ["Rename"]
    assert "Rename" in timing.table()


def test_verify_sees_what_is_wrong(given: Module) -> None:
    verify(given)
    x = given.main.params[0]
    with pytest.raises(AssertionError, match="listed twice"):
        verify(Module({"main": Function([x, x], Tuple([x]))}))
    with pytest.raises(AssertionError, match="returns 1 values but names 2"):
        verify(Module({"main": Function([x], Tuple([x]), {"outputs": ("a", "b")})}))


def test_the_pipeline_grows_with_the_level() -> None:
    names = {n: [p.name for p in PassManager(pipeline(n), n).passes] for n in range(4)}
    assert names[0] == [
        "FoldEmpty",
        "InlineComposites",
        "SimplifyInference",
        "FoldStructure",
        "DecomposeOps",
        "InlineComposites",
        "FuseOps",
    ]
    for low, high in ((0, 1), (1, 2), (2, 3)):
        assert set(names[low]) < set(names[high])
    assert "AlterLayout" in names[3]
    assert "AlterLayout" not in names[2]


def test_no_pass_names_what_the_rewriter_keeps() -> None:
    folder = Path(verify.__code__.co_filename).parent
    files = [f for f in folder.rglob("*.py") if f.name != "manager.py"]
    assert len(files) > 10
    for file in files:
        text = file.read_text()
        assert not any(word in text for word in ("lineage", "span", "origins", "clew.trace")), file
    manager = (folder / "manager.py").read_text()
    assert not any(word in manager for word in ("lineage", "span", "origins"))
