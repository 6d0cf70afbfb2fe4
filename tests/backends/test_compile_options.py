"""Options of `clew.compile`: one object from keywords, records and files, and its key."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.backends.compile_options import PLACES, CompileOptions, Group, described
from clew.runtime.guard import GuardSide
from clew.support.errors import InputError
from clew.support.size_ranges import read_size_text, read_sizes

TEXT = """clew 1
def @main(%x: f32[n, 8]) -> (f32[n, 8],) with outputs=["y"] {
  %0: f32[n, 8] = nn.relu(%x)
  %1: (f32[n, 8],) = (%0,)
  return %1
}
"""
GROUPS = (clew.Sizes, clew.Precision, clew.Passes, clew.Limits, clew.Diagnostics)
MANY = CompileOptions(
    "cpu-avx2",
    threads=31,
    inputs={"x": (1, 2)},
    sizes=clew.Sizes({"n": (1, 512), "m": [1, 8], "k": 128}, specialize=False),
    precision=clew.Precision("bf16", keep_f32=["head*"]),
    opt_level=2,
    passes=clew.Passes(fuse=False, required=["DeadCode"], disabled=["AlterLayout"]),
    backends=["onnxruntime"],
    place={"onnxruntime": ["conv*"]},
    tuned=None,
    cache=False,
    limits=clew.Limits(bounds="clamp", links="snapshot", trust=True),
    diagnostics=clew.Diagnostics(trace=False),
)


def refused(code: str, **keywords: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        clew.compile(clew.parse(TEXT), **keywords)
    assert caught.value.code == code
    return caught.value


# --- as text ---


def test_only_what_differs_from_the_defaults_is_shown() -> None:
    assert repr(CompileOptions()) == "CompileOptions()"
    assert repr(CompileOptions(threads=2, precision="f32")) == "CompileOptions(threads=2)"
    assert repr(CompileOptions("cpu-avx2", passes=clew.Passes(fuse=False))) == (
        "CompileOptions(target='cpu-avx2', passes=Passes(fuse=False))"
    )
    assert repr(clew.Precision("bf16", keep_f32=["a"])) == "Precision('bf16', keep_f32=['a'])"
    assert repr(clew.Precision(keep_f32=["a"])) == "Precision(keep_f32=['a'])"
    assert repr(clew.Diagnostics(guard=True)) == "Diagnostics(guard=True)"
    names = {"clew": clew, **{kind.__name__: kind for kind in (*GROUPS, CompileOptions)}}
    assert eval(repr(MANY), names) == MANY
    assert str(CompileOptions()) == "opt level 3"
    assert "bf16, keep_f32=head*" in str(MANY)
    assert "not fused" in str(MANY)


def test_every_option_has_one_line_of_help() -> None:
    assert len(PLACES) == len({place.option.help for place in PLACES.values()})
    for kind in (*GROUPS, CompileOptions):
        assert kind.__doc__ is not None
        assert described(kind) in kind.__doc__
    for name, place in PLACES.items():
        assert re.fullmatch(r"[A-Z].*\.", place.option.help), name


def test_the_signature_of_compile_is_that_of_the_options() -> None:
    taken = list(inspect.signature(clew.compile).parameters.values())
    assert taken[0].name == "model"
    assert taken[1:] == list(inspect.signature(CompileOptions).parameters.values())
    assert described(CompileOptions) in (clew.compile.__doc__ or "")


# --- keywords ---


def test_plain_values_stand_for_groups() -> None:
    plain = CompileOptions(sizes={"n": 4}, precision="bf16", passes=[], limits=clew.Budgets())
    assert plain.sizes == clew.Sizes({"n": 4})
    assert plain.precision == clew.Precision("bf16")
    assert plain.passes == clew.Passes([])
    assert plain.limits == clew.Limits(clew.Budgets())
    assert CompileOptions(sizes=None, passes=None, limits=None, diagnostics=None).keys() == []


def test_an_option_of_a_group_may_be_given_by_its_name() -> None:
    assert CompileOptions.of(MANY.values()) == MANY
    given = CompileOptions.of({"precision": "bf16", "keep_f32": ["a*"], "trace": False})
    assert given.precision == clew.Precision("bf16", keep_f32=["a*"])
    assert given.diagnostics == clew.Diagnostics(trace=False)


def test_an_option_beside_its_group_is_refused() -> None:
    error = refused("I014", keep_f32=["a*"], precision=clew.Precision("bf16"))
    assert error.message == "'keep_f32' is given beside precision="
    assert error.hint == "write precision=clew.Precision(..., keep_f32=...)"


def test_unknown_options_have_hints() -> None:
    error = refused("I014", precison="bf16")
    assert "precison" in error.message
    assert "precision" in error.hint


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("opt_level", 4, "I011"), ("opt_level", True, "I011"), ("precision", "f33", "I013"),
        ("precision", clew.Passes(), "I015"), ("diagnostics", False, "I015"),
        ("fallback", "yes", "I015"), ("cache", None, "I015"), ("extend", "mine.py", "I015"),
        ("backends", "numpy", "I015"), ("limits", 5, "I015"), ("sizes", [1], "I315"),
    ],
)  # fmt: skip
def test_wrong_values_name_the_option(name: str, value: Any, code: str) -> None:
    error = refused(code, **{name: value})
    assert code != "I015" or name in error.message or name == "limits"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: clew.Precision(keep_f32="conv1"), "I015"),
        (lambda: clew.Passes(fuse=None), "I015"),
        (lambda: clew.Passes(required=5), "I015"),
        (lambda: clew.Limits(bounds="wrap"), "I321"),
        (lambda: clew.Limits(links="all"), "I340"),
        (lambda: clew.Limits(trust="yes"), "I015"),
        (lambda: clew.Diagnostics(guard="end"), "I015"),
        (lambda: clew.Sizes({"n": "x"}), "I315"),
    ],
)
def test_groups_check_their_values(make: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.code == code


def test_options_are_keywords_too() -> None:
    options = CompileOptions(threads=1, passes=clew.Passes(fuse=False))
    assert dict(**options) == {"threads": 1, "passes": clew.Passes(fuse=False)}
    compiled = clew.compile(clew.parse(TEXT), **options)
    assert compiled.compile_options == options


def test_changes_are_by_the_names_of_options() -> None:
    changed = MANY.changed(precision="f16", trace=True, fuse=True, threads=3)
    assert changed.precision == clew.Precision("f16", keep_f32=["head*"])
    assert changed.diagnostics == clew.Diagnostics()
    assert changed.passes == clew.Passes(required=["DeadCode"], disabled=["AlterLayout"])
    assert changed.threads == 3
    assert MANY.changed(**MANY.values()) == MANY
    assert CompileOptions().changed(**CompileOptions.named(dict(**MANY))) == MANY
    with pytest.raises(InputError, match="I014"):
        MANY.changed(fused=True)


# --- records ---


def test_a_record_gives_the_same_options() -> None:
    schedule = clew.schedule_for("relu*", steps="vectorize(loop='i')")
    choice = clew.schedule_for("relu*", choose="elementwise: vectors=2")
    options = MANY.changed(extend=["mine.py", schedule, choice], budgets=clew.Budgets.strict())
    record = options.record()
    again = CompileOptions.of_record(record)
    assert again.record() == record
    assert again.changed(extend=["mine.py"]) == options.changed(extend=["mine.py"])
    live = options.changed(extend=[lambda: 0], backends=[object()], place=print, guard=True)
    assert live.record().keys() == record.keys() - {"extend", "backends", "place"} | {"guard"}


@pytest.mark.parametrize("given", [7, 0, (1, 9), (0, 9), (3, None), [1, 8], [5], range(2, 9)])
@pytest.mark.parametrize("likely", [None, [4]])
def test_sizes_have_a_text_and_a_plain_form(given: Any, likely: Any) -> None:
    if likely and not (isinstance(given, tuple) and given[:1] < (4,)):
        return
    form = {"range": given, "likely": likely} if likely else given
    found = read_sizes({"n": form}).of("n")
    assert read_size_text("n", found.text) == found
    assert read_sizes({"n": found.given}).of("n") == found


def test_a_saved_model_has_its_options(tmp_path: Path) -> None:
    module = clew.parse(TEXT)
    options = CompileOptions(
        threads=1, sizes={"n": (1, 64)}, passes=clew.Passes(fuse=False), tuned=None
    )
    compiled = clew.compile(module, **options, cache=False)
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    assert loaded.compile_options == options.changed(threads=None, tuned="auto")
    x = np.ones((3, 8), np.float32)
    np.testing.assert_array_equal(loaded(x), compiled(x))


# --- keys ---


def test_the_digest_covers_what_decides_the_program(tmp_path: Path) -> None:
    many = MANY.changed(backends=(), place=None)
    base = many.digest()
    assert base is not None
    assert many.changed(trace=True, cache=True, on_progress=print).digest() == base
    for name in many.values():
        if PLACES[name].option.is_keyed:
            default = getattr(clew, PLACES[name].group.capitalize(), CompileOptions)
            plain = {f.name: getattr(default(), f.name) for f in fields(default)}[name]
            assert many.changed(**{name: plain}).digest() != base, name
    records = tmp_path / "records"
    assert (
        CompileOptions(tuned=records).digest()
        == CompileOptions(tuned=None).changed(tuned=records).digest()
    )
    before = CompileOptions(tuned=records).digest()
    records.write_text("x")
    assert CompileOptions(tuned=records).digest() != before


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": []}, {"extend": ["mine.py"]}, {"backends": [object()]}, {"place": print},
        {"place": "auto"}, {"backends": ["numpy"]}, {"fallback": True}, {"instruments": [object()]},
        {"guard": True},
        {"guard": GuardSide.START}, {"budgets": clew.Budgets()}, {"inputs": {"x": np.ones(2)}},
    ],
)  # fmt: skip
def test_nothing_is_a_key_of_code_or_of_checks(changes: dict[str, Any]) -> None:
    assert CompileOptions().changed(**changes).digest() is None


def test_digests_are_equal_in_every_process() -> None:
    program = (
        "import sys, clew\n"
        "o = clew.CompileOptions(threads=2, sizes={'b': 1, 'a': (1, 9)}, precision='bf16')\n"
        "print(o.digest(), 'llvmlite' in sys.modules, 'clew.ir' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONHASHSEED": "7"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ
    )
    digest, *heavy = run.stdout.split()
    mine = CompileOptions(threads=2, sizes={"a": (1, 9), "b": 1}, precision="bf16")
    assert digest == mine.digest()
    assert heavy == ["False", "False"]


def test_a_group_is_frozen() -> None:
    for kind in (*GROUPS, CompileOptions):
        made: Any = kind()
        assert isinstance(made, Group)
        name = fields(kind)[0].name
        with pytest.raises(AttributeError):
            setattr(made, name, None)
