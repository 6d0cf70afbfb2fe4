"""Reading an exported program never runs code in the file, and ends in a model or a coded error."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.frontends.torch.file.hostile_programs import (
    CONSTANTS,
    MODEL,
    SAMPLES,
    WEIGHTS,
    Program,
    kind_of_place,
    places,
)
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph

import clew
from clew.cli.app import main
from clew.frontends.torch.guards import GuardReader
from clew.support.errors import ClewError
from clew.support.trust import set_default_trust

_JSON = (MODEL, WEIGHTS, CONSTANTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("program"))


@pytest.fixture
def program(made: Program) -> Iterator[Program]:
    made.mark.unlink(missing_ok=True)
    yield made
    assert not made.mark.exists(), "code in the file ran"


def _code(path: Path, **options: Any) -> str:
    """Returns the code of the error when a file is read; "" if it is a model."""
    try:
        clew.load(path, **options)
    except clew.ClewError as error:
        return error.code
    return ""


def test_the_program_itself(program: Program) -> None:
    compiled = clew.compile(program.write(), threads=1)
    x, z = torch.randn(5, 4), torch.randn(9, 4)
    loaded = torch.export.load(program.folder / "good.pt2").module()
    for name, value in loaded(x, {"z": z}).items():
        found = compiled(x, {"z": z})[name]
        np.testing.assert_allclose(found, value.detach().numpy(), atol=1e-5)


# --- pickles --------------------------------------------------------------------------------------


def test_members_that_are_not_needed_stay_closed(program: Program) -> None:
    changed = {
        SAMPLES: program.evil(),
        "data/extra/notes.txt": b"\xff\xfe",
        "data/aotinductor/model/model.so": b"\x7fELF",
        "../../outside": program.evil(),
    }
    assert _code(program.write(changed)) == ""
    assert _code(program.write(without=[SAMPLES])) == ""


def test_torch_runs_them_if_it_is_trusted(made: Program) -> None:
    """The attack works: what the other tests show absent is not absent by accident."""
    made.mark.unlink(missing_ok=True)
    _code(made.write({SAMPLES: made.evil()}), trust=True)
    assert made.mark.exists()


def test_trusted_programs_are_models(program: Program) -> None:
    assert _code(program.write(), trust=True) == ""
    assert _code(program.write({SAMPLES: b""}), trust=False) == ""


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_pickles_are_refused(program: Program, folder: str) -> None:
    member, record = f"data/{folder}/model_{folder}_config.json", f"data/{folder}/other"
    config = program.json(member)
    first = next(iter(config["config"].values()))
    first.update(use_pickle=True, path_name="other", tensor_meta=None)
    changed = {member: json.dumps(config).encode(), record: program.evil()}
    assert _code(program.write(changed)) == "M053"
    assert _code(program.write({f"data/{folder}/model.pt": program.evil()})) == "M053"


@pytest.mark.parametrize("prefix", ["custom_obj_", "opaque_obj_", "tensor_"])
def test_objects_are_refused(program: Program, prefix: str) -> None:
    meta = {"path_name": f"{prefix}7", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = {"config": {"thing": meta}}
    changed = {CONSTANTS: json.dumps(config).encode(), f"data/constants/{prefix}7": program.evil()}
    assert _code(program.write(changed)) == "M053"


def test_the_older_form_is_refused(program: Program) -> None:
    path = program.folder / "older.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.7")
        archive.writestr("serialized_exported_program.json", program.members[MODEL])
        for name in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{name}.pt", program.evil())
    with pytest.raises(clew.ClewError, match=r"M053.*is a pickle") as caught:
        clew.load(path)
    assert "trust=True" in str(caught.value)
    assert "--trust" in caught.value.text("cli")


# --- texts that torch evaluates -------------------------------------------------------------------


_CALLED: list[str] = [
    "torch.os.system", "torch.hub.load", "torch.load", "_operator.attrgetter", "math.factorial",
    "builtins.exec", "torch.ops.load_library", "torch.ops.aten.from_file.default",
    "torch.ops.aten.save.default", "torch.ops.higher_order.triton_kernel_wrapper_mutation",
    "#os:system",
]  # fmt: skip


def _codes(program: Program) -> list[str]:
    code = program.code()
    return [
        code, f"x={code}", f"x: {code}", f"{code} or s0", f'x"+{code}+"', f"x', {code}, '",
        f"a\n{code}\n", f"x){code}(",
    ]  # fmt: skip


def _texts(program: Program) -> list[str]:
    return [
        *_codes(program), *_CALLED,
        "9**9**9**9**9", "u99999999999", "../../../etc/passwd", "a" * 300, "\ud800", "", "x",
        "self", "class", "__class__", "s0", "Symbol('s77', positive=True)", "nan", "Infinity",
    ]  # fmt: skip


_VALUES: list[Any] = [
    -1, 0, 1, 2**31, 2**62, 2**63, 2**70, -(2**63), 1e300, True, None, [], {}, "1", [[[]]],
]  # fmt: skip


def _mutants(program: Program) -> list[tuple[str, tuple[Any, ...], Any]]:
    """All replacements of one value by each other, one for each kind of place."""
    found = []
    for member in _JSON:
        known = set()
        for place in places(program.json(member)):
            kind = kind_of_place(place)
            if kind not in known:
                known.add(kind)
                found += [(member, place, text) for text in _texts(program)]
                if not isinstance(place[-1], tuple):
                    found += [(member, place, value) for value in _VALUES]
    return found


@pytest.mark.parametrize("seed", range(2))
def test_any_value_may_be_a_strangers(program: Program, seed: int) -> None:
    for member, place, value in random.Random(seed).sample(_mutants(program), 12):
        _code(program.changed(member, place, value))
        assert not program.mark.exists(), (member, place, value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("piece", range(200))
def test_every_value_may_be_a_strangers(program: Program, piece: int) -> None:
    for member, place, value in _mutants(program)[piece::200]:
        _code(program.changed(member, place, value))
        assert not program.mark.exists(), (member, place, value)


def _set(program: Program, key: str, value: Any) -> Path:
    """Writes the program with each value of a key replaced."""

    def edit(here: Any) -> None:
        if isinstance(here, dict):
            for name in here:
                if name == key:
                    here[name] = value
                else:
                    edit(here[name])
        elif isinstance(here, list):
            for each in here:
                edit(each)

    return program.edited(MODEL, edit)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch MARK') or s0",
        "Symbol('s0', integer=__import__('os').system('touch MARK'))",
        "Symbol(__import__('os').system('touch MARK'))",
        "().__class__.__base__.__subclasses__()",
        "[x for x in (1,)]", "lambda: 0", "Lambda(s0, s0)", "Function('f')(s0)", "parse_expr('1')",
        "Integer('__import__(\"os\")')", "f'{1}'", "s0.func",
        "9**9**9**9", "Pow(Integer(9), Integer(99999999))", "LShift(Integer(1), Integer(10**9))",
        "LShift(1, 999999999)", "PowByNatural(10, 9999999)", "1" * 5000,
        "(" * 500 + "s0" + ")" * 500, "-" * 9000 + "s0", "+".join(["s0*s1"] * 3000),
        "Mul(" + ", ".join(["Add(s0, s1)"] * 30) + ")",
        "Pow(Add(s0, s1, s2), Integer(60))", "s0 + ", "", "Symbol('os')", "Symbol('u99999999999')",
        "FloorDiv(s0, 0)", "Mod(s0, 0)", "ModularIndexing(s0, 0, 0)", "Add()", "Not(s0)", "\0",
        "Where(s0, s0)", "Max(s0, true)", "oo", "nan", "zoo", "Identity(" * 150 + "s0" + ")" * 150,
    ],
)  # fmt: skip
def test_expressions_of_sizes_are_no_code(program: Program, text: str) -> None:
    text = text.replace("MARK", str(program.mark))
    assert _code(_set(program, "expr_str", text)) in ("M052", "M050")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch MARK') == 0", "-" * 9000 + "1 == 1", "not " * 2400 + "1",
        "(" * 4000 + "1" + ")" * 4000 + " == 1", " + ".join(["1"] * 2400) + " == 1", "1 // 0 == 1",
        "1 % 0 == 1", "1 == \0 1", "9" * 5000 + " == 1", "1\n== 1", "(lambda: 1)() == 1", "",
    ],
)  # fmt: skip
def test_guards_are_no_code(tmp_path: Path, text: str) -> None:
    given = SimpleNamespace(
        _guards_code=[text.replace("MARK", str(tmp_path / "ran"))], graph=Graph()
    )
    with pytest.raises(ClewError) as refused:
        list(GuardReader({}, whole=True).rules(cast("ExportedProgram", given)))
    assert refused.value.code == "U060"
    assert len(str(refused.value)) < 1000
    assert not (tmp_path / "ran").exists()


def test_guards_of_a_program(program: Program) -> None:
    with pytest.raises(ClewError, match="valid only if 1 // 0 == 1"):
        clew.load(_set(program, "guards_code", ["1 // 0 == 1"]))


def test_operators_are_those_of_torch(program: Program) -> None:
    for name in _CALLED:
        assert _code(_set(program, "target", name)) in ("M052", "M053")
    with pytest.raises(clew.ClewError, match=r"M053.*it calls 'torch.os.system'"):
        clew.load(_set(program, "target", "torch.os.system"))


def test_names_are_variables_of_torchs_code(program: Program) -> None:
    """torch writes names into Python code of the graph, which it compiles."""
    for name in _codes(program):
        old = json.dumps("by_name_z").encode()
        assert old in program.members[MODEL]
        data = program.members[MODEL].replace(old, json.dumps(name).encode())
        assert _code(program.write({MODEL: data})) == "M052"


def test_trees_import_nothing(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    (program.folder / "stranger.py").write_text(f"open({str(program.mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(program.folder))
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    factory = {"default_factory_module": "stranger", "default_factory_name": "f"}
    enum = [{"__enum__": True, "fqn": "stranger:E", "name": "A"}]
    for kind, context, codes in [
        ("collections.defaultdict", {**factory, "dict_context": ["a", "b"]}, ("", "M050")),
        ("builtins.dict", json.dumps(enum), ("M052",)),
        ("stranger.E", json.dumps(enum), ("", "M050")),
        ("stranger E", "null", ("M052",)),
    ]:
        tree = {"type": kind, "context": context, "children_spec": [leaf] * 6}
        place = ("graph_module", "module_call_graph", 0, "signature", "out_spec")
        path = program.changed(MODEL, place, json.dumps([1, tree]))
        assert _code(path) in (*codes, "M052"), kind


# --- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sizes", [5, 4]), ("sizes", [-4, -4]), ("sizes", [2**62, 4]), ("sizes", [4]),
        ("strides", [5, 1]), ("strides", [-4, 1]), ("strides", [2**62, 1]), ("strides", [4]),
        ("storage_offset", 1), ("storage_offset", -1), ("storage_offset", 2**62),
        ("dtype", 0), ("dtype", 8), ("dtype", 99), ("layout", 1), ("layout", 99),
    ],
)  # fmt: skip
def test_tensors_stay_within_their_records(program: Program, field: str, value: Any) -> None:
    def size(number: int) -> dict[str, int]:
        return {"as_int": number}

    def edit(config: Any) -> None:
        meta = config["config"]["linear.weight"]["tensor_meta"]
        if isinstance(value, list):
            meta[field] = [size(number) for number in value]
        else:
            meta[field] = size(value) if field == "storage_offset" else value

    assert _code(program.edited(WEIGHTS, edit)) in ("M052", "M006")


def test_strides_of_zero_are_bounded(program: Program) -> None:
    def edit(config: Any) -> None:
        meta = config["config"]["linear.weight"]["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 30}] * 2, [{"as_int": 0}] * 2

    path = program.edited(WEIGHTS, edit)
    assert _code(path) == "M006"
    assert _code(path, budgets=clew.Budgets.strict()) == "M006"


@pytest.mark.parametrize("name", ["", "../weights/weight_0", "/etc/passwd", "weight_99", "a\0b"])
def test_records_are_members(program: Program, name: str) -> None:
    def edit(config: Any) -> None:
        config["config"]["linear.weight"]["path_name"] = name

    assert _code(program.edited(WEIGHTS, edit)) == "M052"


def test_records_of_other_lengths(program: Program) -> None:
    for data in (b"", b"abc", bytes(63)):
        assert _code(program.write({"data/weights/weight_0": data})) == "M052"


# --- archives -------------------------------------------------------------------------------------


def test_zip_bombs(program: Program) -> None:
    for member, codes in [("data/weights/weight_0", ("I331", "M052")), (MODEL, ("I331", "I330"))]:
        path = program.write({member: bytes(16 << 20)}, method=zipfile.ZIP_DEFLATED)
        assert path.stat().st_size < 1 << 17
        small = clew.Budgets(tensor_bytes=1 << 20, attribute_bytes=1 << 20)
        assert _code(path, budgets=small) in codes


def test_json_may_be_deep(program: Program) -> None:
    for text in ("[" * 100_000, '{"graph_module":' * 500 + "1" + "}" * 500, "[]", "1", '"', ""):
        assert _code(program.write({MODEL: text.encode()})) == "M052"


def test_archives_may_be_anything(program: Program) -> None:
    path = program.folder / "odd.pt2"
    for members in ([], ["a"], ["a/archive_format"], ["archive_format"], ["/archive_format"]):
        with zipfile.ZipFile(path, "w") as archive:
            for name in members:
                archive.writestr(name, b"pt2")
        assert _code(path) in ("M052", "I002"), members
    for member in (MODEL, WEIGHTS, CONSTANTS, "archive_format", "archive_version"):
        assert _code(program.write(without=[member])) in ("M052", "I002"), member
    assert _code(program.write({"byteorder": b"big"})) == "M052"
    assert _code(program.write({"archive_version": b"1"})) == "M052"
    data = program.write().read_bytes()
    for end in range(0, len(data), len(data) // 20):
        path.write_bytes(data[:end])
        assert _code(path) in ("M052", "I002")


def test_native_code_is_no_program(program: Program) -> None:
    path = program.folder / "native.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/archive_format", b"pt2")
        archive.writestr("m/archive_version", b"0")
        archive.writestr("m/data/aotinductor/model/model.so", b"\x7fELF")
    for trust in (False, None):
        with pytest.raises(clew.ClewError, match="AOTInductor"):
            clew.load(path, trust=trust)


# --- budgets, commands, custom operators ----------------------------------------------------------


def test_budgets_limit_programs(program: Program) -> None:
    path = program.write()
    for name, code in [("nodes", "M009"), ("rank", "M006"), ("name_chars", "M030"),
                       ("tensor_bytes", "M006"), ("total_bytes", "I331"),
                       ("attribute_bytes", "I331"), ("nesting", "M007")]:  # fmt: skip
        assert _code(path, budgets=clew.Budgets(**{name: 1})) == code, name


def test_the_commands_trust_on_request(
    program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(program.write({"data/weights/model.pt": b"no pickle"}))
    try:
        for arguments, shown in [
            (["run", path], "--trust"),
            (["run", path, "--trust"], "M052"),
            (["explore", path, "--trust", "--get", "models"], "runs no code"),
        ]:
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert ended.value.code in (1, 2)
            assert shown in capsys.readouterr().err
    finally:
        set_default_trust(False)


def test_a_users_operator_needs_trust(tmp_path: Path) -> None:
    """A file calls functions of this process only if it is trusted."""
    library = torch.library.Library("clew_test_of_files", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("clew_test_of_files::twice", torch.empty_like, lib=library)

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.clew_test_of_files.twice(x)

    path = tmp_path / "twice.pt2"
    torch.export.save(torch.export.export(Twice(), (torch.ones(3),)), path)
    with pytest.raises(clew.ClewError, match=r"M053.*clew_test_of_files\.twice"):
        clew.load(path)
    compiled = clew.compile(path, limits=clew.Limits(trust=True), threads=1)
    np.testing.assert_array_equal(compiled(torch.ones(3)), np.full(3, 2.0))


def test_values_and_results_are_bounded(program: Program, tmp_path: Path) -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.unbind(1)[0] + x.split(2, 1)[0][:, 0] + x.chunk(2, 1)[0][:, 0]

    small = torch.export.export(Parts(), (torch.ones(2, 4),))
    torch.export.save(small, tmp_path / "small.pt2")
    assert _code(tmp_path / "small.pt2") == ""
    with zipfile.ZipFile(tmp_path / "small.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for size, code in [(1 << 20, "M030"), (1 << 40, "M006")]:
        with zipfile.ZipFile(tmp_path / "large.pt2", "w") as archive:
            for name, data in members.items():
                sizes = b'"sizes": [{"as_int": 2}, {"as_int": 4}]'
                more = b'"sizes": [{"as_int": 2}, {"as_int": %d}]' % size
                archive.writestr(name, data.replace(sizes, more))
        assert _code(tmp_path / "large.pt2") == code
