"""Arrays in files: read as numpy reads them where they are whole, and refused where not, before
memory is taken.
"""

from __future__ import annotations

import io
import os
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from clew.support.archives import Archive, read_array
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from clew.support.files import CHANGED

ARRAYS = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big endian": np.arange(6, dtype=">f8"),
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4)),
    "scalar": np.float16(1.5),
    "empty": np.zeros((0, 3), np.int8),
    "bool": np.array([True, False]),
    "complex": np.array([1j]),
    "text": np.array(["ab", "", "é"]),
    "no text": np.array(["", ""]),
    "bytes": np.array([b"ab", b""]),
    "raw": np.arange(3).astype(ml_dtypes.bfloat16),
    "times": np.array(["2020-01-01"], "M8[D]"),
    "long": np.arange(1_000_000, dtype=np.int32),
    "strided": np.arange(20)[::3],
}


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    """The bytes of a .npy with any header."""
    text = header.encode("latin-1") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def head(descr: object = "<f4", order: object = False, shape: object = (2,)) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}"


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ARRAYS)
def test_what_numpy_writes_is_read_as_numpy_reads_it(tmp_path: Path, name: str) -> None:
    array = np.asarray(ARRAYS[name])
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x=array)
    np.savez_compressed(tmp_path / "c.npz", x=array, y=array)
    wanted = np.load(tmp_path / "a.npy")
    found = [read_array(tmp_path / "a.npy")]
    for file in ("a.npz", "c.npz"):
        with Archive(tmp_path / file) as archive:
            assert list(archive) == [k for k in ("x", "y") if k in archive]
            assert len(archive) == len(list(archive))
            found += archive.values()
        found.append(Archive((tmp_path / file).read_bytes(), file)["x"])
    for other in found:
        assert (other.dtype, other.shape) == (wanted.dtype, wanted.shape)
        assert other.tobytes() == wanted.tobytes()
        assert other.flags.writeable


def test_headers_of_other_writers(tmp_path: Path) -> None:
    data = np.float32([1, 2]).tobytes()
    for text in (
        head(),
        '{"descr": "<f4", "fortran_order": False, "shape": (2,)}',
        "{'shape':(2L,),'fortran_order':False,'descr':'<f4'}   ",
        "  {  'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , ) , }",
    ):
        for version in (1, 2, 3):
            path = written(tmp_path / "a.npy", npy(text, data, version))
            assert read_array(path).tolist() == [1, 2]
    assert read_array(written(tmp_path / "a.npy", npy(head(), data + b"more"))).tolist() == [1, 2]


HEADERS = {
    "unclosed": "{'descr': '<f4', 'fortran_order': False, 'shape': ((((((",
    "very unclosed": "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 9000,
    "unclosed text": "{'descr': '<f4",
    "a sum": head(shape="(1+1,)"),
    "a call": head(shape="__import__('os').getpid()"),
    "negative": head(shape="(-1,)"),
    "a Boolean": head(shape="(True,)"),
    "no tuple": head(shape="2"),
    "two commas": head(shape="(2,,)"),
    "a long number": head(shape=f"({'9' * 5000},)"),
    "100 axes": head(shape=f"({'1,' * 100})"),
    "objects": head("|O"),
    "records": head([("a", "<f4")]),
    "no dtype": head("<q9"),
    "an odd width": head("<f3"),
    "wide text": head("<U999999999"),
    "order": head(order=1),
    "twice": "{'descr': '<f4', 'descr': '<f4', 'shape': (2,), }",
    "a key missing": "{'descr': '<f4', 'shape': (2,), }",
    "another key": head()[:-1] + "'x': 'y', }",
    "behind": head() + " 1",
    "no header": "",
    "a NUL": head("<f4\0"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_are_refused(tmp_path: Path, name: str) -> None:
    data = npy(HEADERS[name], bytes(16))
    with pytest.raises(ValueError, match=r"it|its|I331"):
        read_array(written(tmp_path / "a.npy", data))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", data)
    with pytest.raises(ValueError, match=r"it|its|needs"):
        Archive(stream.getvalue())["x"]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ("(4611686018427387904, 4)", "<f4"),
        ("(4294967296, 4294967296)", "<f4"),
        ("(0, 4611686018427387904)", "<f4"),
        ("(1000000000000,)", "<U0"),
        ("(9999999999999999999,)", "|u1"),
    ],
)
def test_absurd_shapes_take_no_memory(tmp_path: Path, shape: str, dtype: str) -> None:
    path = written(tmp_path / "a.npy", npy(head(dtype, shape=shape), bytes(16)))
    with pytest.raises(ClewError, match="I331") as caught:
        read_array(path)
    assert repr(str(path)) in caught.value.message


def test_a_shape_beyond_the_bytes_that_are_there(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npy", npy(head(shape="(1000000,)"), bytes(16)))
    with pytest.raises(ValueError, match="its array needs 4000000 bytes, but it has 16"):
        read_array(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    for data, reason in (
        (b"", "ends too early"),
        (b"\x93NUM", "ends too early"),
        (b"\x93NUMPY\x09\0\0\0", "version 9"),
        (b"\x93NUMPY\x02\0\xff\xff\xff\xff", "4294967295 bytes"),
        (b"abcdefghijklmn", "not a .npy file"),
        (b"\x80\x04\x95" + bytes(100), "not a .npy file"),  # a pickle
        ((tmp_path / "a.npz").read_bytes(), "an archive of several arrays"),
        (npy(head("|b1", shape="(2,)"), b"\1\2"), "neither 0 nor 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_array(written(path, data))


def test_only_wanted_arrays_are_unpacked_and_within_the_budgets(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, small=np.ones(3), large=np.zeros(1 << 25, np.uint8))
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    with Archive(path) as archive, in_force(Budgets(tensor_bytes=1 << 20)):
        assert archive["small"].tolist() == [1, 1, 1]
        with pytest.raises(ClewError, match="I331") as caught:
            archive["large"]
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert f"'large' in {str(path)!r}" in caught.value.message
    assert "tensor_bytes" in caught.value.hint
    with Archive(path) as archive, in_force(Budgets(total_bytes=40)):
        assert len(archive["small"]) == 3
        with pytest.raises(ClewError, match="total_bytes"):
            archive["small"]


def test_counts_of_entries_have_a_budget(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(f"{number}.npy", b"")
    with in_force(Budgets(values=49)), pytest.raises(ClewError, match=r"I331.*entries"):
        Archive(path)
    with in_force(Budgets(text_chars=1000)), pytest.raises(ClewError, match=r"I331.*list"):
        Archive(path)
    with in_force(Budgets(attribute_bytes=10)), Archive(path) as opened:
        assert opened.member("3.npy") == b""


def test_members_have_a_budget() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", bytes(100_000))
    with in_force(Budgets(attribute_bytes=10)), pytest.raises(ClewError, match="I331"):
        Archive(stream.getvalue(), "x").member("a.json")


def test_an_archive_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(1000))
    with Archive(path) as archive:
        os.utime(path, (1, 1))
        with pytest.raises(OSError, match=CHANGED):
            archive["x"]
    np.savez(path, x=np.zeros(1000))
    with Archive(path) as archive:
        os.truncate(path, 500)
        with pytest.raises(OSError, match=CHANGED):
            archive["x"]


def archive_of(**changes: Any) -> bytes:
    """An archive whose list of entries says something else of its only one."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(head(shape="(1000,)"), bytes(4000)))
    data = bytearray(stream.getvalue())
    at = data.index(b"PK\1\2")
    places = {"flags": 8, "method": 10, "checksum": 16, "packed": 20, "size": 24, "start": 42}
    for name, value in changes.items():
        field = "<H" if name in ("flags", "method") else "<I"
        struct.pack_into(field, data, at + places[name], value)
    return bytes(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": 1}, {"method": 12}, {"checksum": 0}, {"packed": 3}, {"packed": 1 << 20},
        {"size": 10}, {"size": 1 << 31}, {"start": 1}, {"start": 1 << 30}, {"size": 0xFFFFFFFF},
        {"method": 0},
    ],
)  # fmt: skip
def test_lists_of_entries_that_lie(changes: dict[str, int]) -> None:
    assert Archive(archive_of())["x"].shape == (1000,)
    with pytest.raises(
        ValueError, match=r"damaged|archive|encrypted|too early|more bytes|differs|not a .npy"
    ):
        Archive(archive_of(**changes))["x"]


def test_two_entries_of_one_name() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", b"2")
    with pytest.raises(ValueError, match="two entries named"):
        Archive(stream.getvalue())


def mutants(data: bytes, draw: random.Random, count: int) -> Iterator[bytes]:
    """Bytes with some changed, cut, doubled, or taken from elsewhere in them."""
    marks = (0, 1, 0x7F, 0x80, 0xFF, 40, 41, 123, 125)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 5))):
            at = draw.randrange(len(made) + 1)
            match draw.randrange(5):
                case 0 if at < len(made):
                    made[at] = draw.choice(marks)
                case 1 if at < len(made):
                    made[at] ^= 1 << draw.randrange(8)
                case 2:
                    del made[at : at + draw.choice((1, 4, 50))]
                case 3:
                    start = draw.randrange(len(data))
                    made[at:at] = data[start : start + draw.choice((1, 8, 60))]
                case _:
                    made[at : at + 4] = draw.choice(
                        (
                            b"\xff" * 4,
                            b"\0" * 4,
                            b"\xff\xff\xff\x7f",
                            b"9999",
                            b"((((",
                            b"\0\0\0\x80",
                        )
                    )
            if not made:
                made = bytearray(b"\0")
        yield bytes(made)


def test_mutants_are_read_or_refused(tmp_path: Path) -> None:
    """In all 4000; the same each time."""
    draw = random.Random(5)
    arrays = {n.replace(" ", "_"): np.asarray(a).reshape(-1)[:40] for n, a in ARRAYS.items()}
    seeds = []
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **arrays)
        seeds.append(stream.getvalue())
    read = 0
    with in_force(Budgets.strict()):
        for data in seeds:
            for mutant in mutants(data, draw, 1000):
                try:
                    archive = Archive(mutant)
                except (ValueError, ClewError):
                    continue
                for name in archive:
                    try:
                        read += archive[name].size >= 0
                    except (ValueError, ClewError):
                        continue
        for mutant in mutants(npy(head(shape="(2, 3)"), bytes(24)), draw, 2000):
            try:
                read += read_array(written(tmp_path / "a.npy", mutant)).size >= 0
            except (ValueError, ClewError):
                continue
    assert read > 1000
