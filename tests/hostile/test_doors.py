"""Damaged files beside a model: each command ends in a result or in a coded error.

`python -m hostile.doors` (with `tools` on the path) tries 200 mutants of each door.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.cli.user_code import of_user
from clew.predict.table import COLUMNS, read_table, schema
from clew.quantization.recipe import Recipe
from clew.quantization.scheme import Scheme
from clew.runtime.container import read_container, write_container
from clew.support.errors import ClewError
from hostile import doors
from hostile.corpus import network

ROOT = Path(__file__).parents[2]
CHEAP = ("static_recipe", "scheme", "partition", "saved", "schedule", "vta", "predictor")


def coded(action: Callable[[], Any]) -> str:
    with pytest.raises(ClewError) as found:
        action()
    return found.value.code


# --- the tool -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHEAP)
def test_a_few_mutants_of_a_door(name: str, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")])
    environment = {**os.environ, "PYTHONPATH": paths, "CLEW_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "hostile.doors", name, "--count", "8"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    ends = [json.loads(line)["ends"] for line in done.stdout.splitlines()]
    assert any("ok" in end for end in ends)


def test_mutants_follow_from_their_number() -> None:
    def made(number: int) -> bytes:
        return doors.json_mutant({"a": [1, "x", {"b": 0.5}]}, random.Random(number))

    assert [made(n) for n in range(50)] == [made(n) for n in range(50)]
    assert len({made(n) for n in range(50)}) > 30


@pytest.mark.parametrize(
    ("status", "code", "said", "wrong"),
    [
        (0, "", "", ""),
        (1, "I381", "error[I381] it is", ""),
        (2, "", "Usage", ""),
        (1, "", "", "no coded error"),
        (1, "C080", "error[C080] x", "blames clew: C080"),
        (1, "I068", "error[I068] x", "blames code of the user"),
        (1, "", "internal error: KeyError", "a traceback"),
        (-11, "", "", "killed by signal 11"),
    ],
)
def test_complaints(status: int, code: str, said: str, wrong: str) -> None:
    assert doors.complaint(status, code, said) == wrong


# --- faults that were found -----------------------------------------------------------------------


@pytest.mark.parametrize("field", ["scale", "zero", "numbers"])
def test_an_infinite_number_in_a_recipe(field: str) -> None:
    layer = {"layer": "a", "value": "x", "scale": 1.0, "zero": 0, "dtype": "u8"}
    layer[field] = [float("inf")] if field == "numbers" else float("inf")
    document = {"format": 1, "scheme": {}, "layers": [layer]}
    assert coded(lambda: Recipe.of_json(document)) == "I398"


@pytest.mark.parametrize("name", list(Scheme.__dataclass_fields__))
@pytest.mark.parametrize("value", [{}, [1], None, b"i8", ("u8",)])
def test_fields_of_a_scheme_have_their_types(name: str, value: Any) -> None:
    assert coded(lambda: Scheme(**{name: value})) == "I390"


def test_a_number_is_no_truth_value_and_a_truth_value_no_number() -> None:
    assert coded(lambda: Scheme(migration=1)) == "I390"  # type: ignore[arg-type]
    assert coded(lambda: Scheme(group=True)) == "I390"
    assert Scheme(percentile=99).percentile == 99


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    (folder / "m.onnx").write_bytes(network().SerializeToString())
    clew.partition(folder / "m.onnx", at=["Relu_1"]).save(folder / "parts")
    return folder / "parts"


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "reads what nothing gives": lambda m: m["parts"][1]["reads"].__setitem__(0, "nothing"),
    "reads what comes later": lambda m: m["parts"].reverse(),
    "reads a list": lambda m: m["parts"][0]["reads"].__setitem__(0, ["x"]),
    "gives too many": lambda m: m["parts"][0]["gives"].append("more"),
    "gives too few": lambda m: m["parts"][1]["gives"].clear(),
    "reads too many": lambda m: m["parts"][0]["reads"].append(m["parts"][0]["reads"][0]),
    "an output of no part": lambda m: m["outputs"][0].__setitem__("value", "nothing"),
    "an output that is a number": lambda m: m["outputs"][0].__setitem__("value", 3),
    "an input that is an object": lambda m: m["inputs"][0].__setitem__("value", {}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_manifests_that_contradict_themselves(what: str, partition: Path, tmp_path: Path) -> None:
    for file in partition.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert clew.load_partition(tmp_path).check(threads=1).passed
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    CHANGES[what](manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert coded(lambda: clew.load_partition(tmp_path)) == "I139"


def table_at(path: Path, change: Callable[[Any], Any]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zero: dict[str, Any] = {"string": "x", "list<string>": ["x"], "bool": True}
    row = {name: zero.get(kind, 1) for name, (kind, _) in COLUMNS.items()}
    table = arrow.Table.from_pylist([row, row], schema=schema())
    parquet.write_table(change(table), path)
    return path


def replaced(name: str, values: list[Any], kind: str = "") -> Callable[[Any], Any]:
    def change(table: Any) -> Any:
        arrow = pytest.importorskip("pyarrow")
        place = table.column_names.index(name)
        type_ = arrow.type_for_alias(kind) if kind else table.schema.field(name).type
        return table.set_column(place, name, arrow.array(values, type_))

    return change


def test_a_good_table(tmp_path: Path) -> None:
    path = table_at(tmp_path / "t.parquet", lambda table: table)
    assert read_table(path).num_rows == 2
    assert read_table(path, ("seed", "network")).column_names == ["seed", "network"]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.append_column("cycles", table.column("cycles")),
        lambda table: table.drop_columns(["ops"]),
        replaced("cycles", [1, 2], "int64"),
        replaced("network", [1, 2], "int64"),
        replaced("network", ["x", None]),
        replaced("ops", [["x"], None]),
        replaced("ops", [["x"], ["y", None]]),
        replaced("cycles", [1.0, float("nan")]),
        replaced("cycles", [1.0, float("inf")]),
        replaced("cycles", [1.0, -1.0]),
        replaced("iterations", [1.0, None]),
        replaced("latency_ns", [1.0, 0.0]),
        replaced("threads", [1, 0]),
        replaced("bytes", [1, 2**63 - 1]),
    ],
)
def test_damaged_tables(change: Callable[[Any], Any], tmp_path: Path) -> None:
    path = table_at(tmp_path / "t.parquet", change)
    assert coded(lambda: read_table(path)) == "I182"


def test_a_library_compiled_from_another_language_is_not_the_users_code() -> None:
    program = compile("raise KeyError('Field exists 2 times')", "pyarrow/table.pxi", "exec")
    with pytest.raises(KeyError) as found:
        exec(program)
    error = found.value
    error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
    assert of_user(error) is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.clew"
    clew.compile(network(), threads=1, cache=False).save(path)
    return path


def _arena(text: dict[str, Any]) -> list[Any]:
    return text["builds"][0]["segments"][0]["arena"]  # type: ignore[no-any-return]


MENDED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a symbol that is nowhere": lambda t: t["kernels"][0]["entries"][0].update(symbol="abort"),
    "an object without its symbols": lambda t: t["objects"][0].update(symbols=[]),
    "a symbol that the object lacks": lambda t: t["objects"][0]["symbols"].append("abort_2"),
    "objects twice": lambda t: t["objects"].append(t["objects"][0]),
    "a blob that is no object": lambda t: t["objects"][0].update(blob=5),
    "a slot that does not exist": lambda t: t["builds"][0]["program"].update(outputs=[99]),
    "fewer slots": lambda t: t["builds"][0]["program"].update(slots=1),
    "a slot below 0": lambda t: t["builds"][0]["program"]["instructions"][0].update(outputs=[-1]),
    "an arena buffer outside": lambda t: _arena(t)[0].__setitem__(1, 1 << 20),
    "an arena buffer before": lambda t: _arena(t)[0].__setitem__(1, -64),
    "arena buffers that overlap": lambda t: _arena(t)[1].__setitem__(1, 0),
    "a misaligned arena buffer": lambda t: _arena(t)[1].__setitem__(1, _arena(t)[1][1] + 4),
    "no build": lambda t: t["builds"].clear(),
}


@pytest.fixture(scope="module")
def mended(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of saved models with changed texts and checksums that fit."""
    folder = tmp_path_factory.mktemp("mended")
    container = read_container(saved)
    blobs = [np.array(blob) for blob in container.blobs]
    for number, change in enumerate(MENDED.values()):
        text = json.loads(json.dumps(container.text))
        change(text)
        write_container(folder / f"{number}.clew", text, blobs)
    write_container(folder / "good.clew", container.text, blobs)
    return folder


@pytest.mark.parametrize("what", MENDED)
def test_a_saved_model_that_contradicts_itself(what: str, mended: Path) -> None:
    clew.load_compiled(mended / "good.clew", 1)
    file = mended / f"{list(MENDED).index(what)}.clew"
    assert coded(lambda: clew.load_compiled(file, 1)) == "C055"


def test_the_checks_hold_without_assertions(mended: Path) -> None:
    """`python -OO` removes `assert`."""
    program = (
        "import sys, clew\n"
        "for file in sys.argv[1:]:\n"
        "    try: clew.load_compiled(file, 1); print('loaded')\n"
        "    except clew.ClewError as error: print(error.code)\n"
    )
    files = [mended / f"{number}.clew" for number in range(len(MENDED))]
    done = subprocess.run(
        [sys.executable, "-OO", "-c", program, mended / "good.clew", *files],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["loaded", *["C055"] * len(MENDED)]
