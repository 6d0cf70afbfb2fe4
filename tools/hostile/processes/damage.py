"""Damaged files of the cache, and damaged saved models."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np

import clew
from clew.runtime.container import read_container, write_container
from clew.support.errors import ClewError
from hostile.corpus import network
from hostile.processes.setting import IMAGE, ROUNDS, case, compiled, right


@case()
def damaged_cache_files(folder: Path) -> None:
    right()
    draw = random.Random(3)
    paths = sorted(p for p in (folder / "cache").glob("??/*"))
    assert len(paths) > 3
    for path in paths:
        whole = path.read_bytes()
        damages = [whole[:n] for n in (0, 1, 20, len(whole) // 2, len(whole) - 1)]
        damages += [whole + b"x", bytes(len(whole)), whole.replace(b"cache-1", b"cache-9")]
        for _ in range(2 * ROUNDS):
            flipped = bytearray(whole)
            flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            damages.append(bytes(flipped))
        for damaged in damages if ROUNDS > 1 else draw.sample(damages, 2):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(damaged)
            right()
    assert compiled(network(), threads=1).from_cache


@case()
def cache_files_that_are_no_files(folder: Path) -> None:
    right()
    for path in sorted((folder / "cache").glob("??/*"))[:4]:
        path.unlink()
        path.mkdir()
        right()
        path.rmdir()
        os.mkfifo(path)
        right()
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")
        right()
        path.unlink(missing_ok=True)


def _artifact(folder: Path) -> tuple[Path, Any]:
    built = compiled(network(), threads=1)
    built.save(folder / "m.clew")
    return folder / "m.clew", built(IMAGE)


def _refused_or_same(path: Path, wanted: Any) -> bool:
    """Whether a saved model was refused; it gives the right result otherwise."""
    try:
        result = clew.load_compiled(path, 1)(IMAGE)
    except ClewError as error:
        assert error.code.startswith("C"), error
        return True
    assert np.array_equal(result, wanted)
    return False


@case()
def every_byte_of_a_saved_model(folder: Path) -> None:
    path, wanted = _artifact(folder)
    whole = path.read_bytes()
    draw = random.Random(11)
    refused = 0
    places = range(0, len(whole), 1 if ROUNDS > 1 else 97)
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        refused += _refused_or_same(path, wanted)
    assert refused == len(places)


@case()
def every_length_of_a_saved_model(folder: Path) -> None:
    path, wanted = _artifact(folder)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7 if ROUNDS > 1 else 211):
        path.write_bytes(whole[:length])
        assert _refused_or_same(path, wanted)
    path.write_bytes(whole + b"\0")
    assert _refused_or_same(path, wanted)


@case()
def saved_for_another_machine(folder: Path) -> None:
    path, wanted = _artifact(folder)
    container = read_container(path)
    text, blobs = container.text, [b.copy() for b in container.blobs]

    def other(**machine: Any) -> str:
        changed = {**text, "machine": {**text["machine"], **machine}}
        write_container(folder / "o.clew", changed, blobs)
        try:
            clew.load_compiled(folder / "o.clew", 1)
        except ClewError as error:
            return error.code
        return ""

    assert other() == ""
    assert other(triple="aarch64-unknown-linux-gnu") == "C056"
    assert other(triple="x86_64-pc-windows-msvc") == "C056"
    assert other(features=[*text["machine"]["features"], "avx1024"]) == "C057"
    assert other(cpu="z80", same_cpu=True) == "C057"
    for name in text["machine"]:
        assert other(**{name: None}) in ("", "C055"), name
    write_container(folder / "o.clew", text, blobs, version=99)
    assert _refused_or_same(folder / "o.clew", wanted)
