"""External data in forbidden places, or of another length than declared."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

import clew
from clew.support.errors import ClewError
from hostile.catalog import (
    X,
    case,
    each,
    ints,
    model,
    node,
    run,
    value,
    written,
)
from hostile.files import with_weight


def stored(location: str, **entries: str) -> ModelProto:
    """Returns a model with 24 bytes of external data."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.dims.extend([2, 3])
    weight.external_data.add(key="location", value=location)
    for key, text in entries.items():
        weight.external_data.add(key=key, value=text)
    return with_weight(weight)


def inside(folder: Path) -> Path:
    """Returns a model's folder, with a secret beside it."""
    (folder / "secret.bin").write_bytes(b"\1" * 64)
    (folder / "model").mkdir()
    (folder / "model" / "w.bin").write_bytes(b"\0" * 64)
    return folder / "model"


LOCATIONS = {
    "parent": "../secret.bin",
    "parent_and_back": "../model/w.bin",
    "deep_parent": "a/b/../../../secret.bin",
    "absolute": "/etc/passwd",
    "url": "file:///etc/passwd",
    "http": "http://127.0.0.1:9/w.bin",
    "home": "~/w.bin",
    "backslashes": "..\\secret.bin",
    "empty": "",
    "dot": ".",
    "slash": "w.bin/",
    "null": "w.bin\0",
    "newline": "w.bin\n",
    "proc": "/proc/self/mem",
    "descriptor": "/dev/fd/0",
    "variable": "$HOME/w.bin",
    "long": "a" * 100_000,
    "deep": "a/" * 20_000 + "w.bin",
    "memory_marker": "*/_ORT_MEM_ADDR_/*",
}


@each("external", LOCATIONS, "M005", "M030", "ok")
def external_location(folder: Path, given: str) -> None:
    clew.load(written(inside(folder), stored(given)))


@case("M005")
def external_symlink(folder: Path) -> None:
    room = inside(folder)
    (room / "l.bin").symlink_to(folder / "secret.bin")
    clew.load(written(room, stored("l.bin")))


@case("M005")
def external_symlink_within(folder: Path) -> None:
    room = inside(folder)
    (room / "l.bin").symlink_to("w.bin")
    clew.load(written(room, stored("l.bin")))


@case("M005")
def external_linked_parent(folder: Path) -> None:
    room = inside(folder)
    (room / "sub").symlink_to(folder)
    clew.load(written(room, stored("sub/secret.bin")))


@case("M005")
def external_hard_link(folder: Path) -> None:
    room = inside(folder)
    os.link(folder / "secret.bin", room / "h.bin")
    clew.load(written(room, stored("h.bin")))


def snapshot(folder: Path, target: str) -> Path:
    """Returns a model in a snapshot of a hub, whose weights are a link to `target`."""
    repository = folder / "models--org--name"
    room = repository / "snapshots" / "abc"
    room.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (folder / "secret.bin").write_bytes(b"\1" * 64)
    (repository / "blobs" / "chain").symlink_to(folder / "secret.bin")
    (room / "w.bin").symlink_to(target)
    return written(room, stored("w.bin"))


TARGETS = {
    "outside": "../../../secret.bin",
    "absolute": "/etc/passwd",
    "chain": "../../blobs/chain",
    "back": "../../blobs/../../secret.bin",
    "device": "/dev/zero",
    "itself": "w.bin",
    "folder": "../../blobs",
}


@each("snapshot", TARGETS, "M005")
def external_link_of_a_snapshot(folder: Path, given: str) -> None:
    clew.load(snapshot(folder, given), links="snapshot")


@case("M005")
def external_pipe(folder: Path) -> None:
    room = inside(folder)
    os.mkfifo(room / "p.bin")
    clew.load(written(room, stored("p.bin")))


@case("M005")
def external_folder(folder: Path) -> None:
    room = inside(folder)
    (room / "d.bin").mkdir()
    clew.load(written(room, stored("d.bin")))


@case("M005")
def external_socket(folder: Path) -> None:
    room = inside(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(room / "s.bin"))
        clew.load(written(room, stored("s.bin")))


RANGES = {
    "beyond": {"offset": "60", "length": "24"},
    "negative": {"offset": "-4"},
    "huge": {"offset": str(1 << 63)},
    "overflow": {"offset": str((1 << 64) - 8), "length": "24"},
    "text": {"offset": "zero"},
    "hex": {"offset": "0x10"},
    "float": {"length": "24.0"},
    "spaces": {"offset": " 0 "},
    "arabic_digits": {"offset": "٠"},
    "underscore": {"offset": "1_0"},
    "short": {"length": "4"},
    "empty": {"length": ""},
}


@each("external_range", RANGES, "M005", "M006")
def external_range(folder: Path, given: dict[str, str]) -> None:
    clew.load(written(inside(folder), stored("w.bin", **given)))


def weight_of(module: Any) -> Any:
    """Returns the weight that a model adds."""
    return module.main.body.fields[0].args[1].data


@case("M005", "ok")
def external_swapped_while_loading(folder: Path) -> None:
    """A file that is replaced by a link again and again never shows what the link leads to."""
    room = inside(folder)
    path = written(room, stored("w.bin", length="24"))
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            new = room / "new.bin"
            new.symlink_to(folder / "secret.bin")
            os.replace(new, room / "w.bin")
            new.write_bytes(b"\0" * 64)
            os.replace(new, room / "w.bin")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            try:
                weight = weight_of(clew.load(path))
            except ClewError:
                continue
            assert not np.asarray(weight).any()
    finally:
        stop.set()
        thread.join()


@case()
def external_cut_while_in_use(folder: Path) -> None:
    """A mapped file that gets shorter must not kill the process."""
    room = inside(folder)
    count = 1 << 16
    (room / "w.bin").write_bytes(b"\0" * count * 4)
    made = stored("w.bin")
    made.graph.initializer[0].dims[:] = [count]
    made.graph.input[0].CopyFrom(value("x", [count]))
    module = clew.load(written(room, made))
    os.truncate(room / "w.bin", 16)
    compiled = clew.compile(module, threads=1, cache=False)
    compiled(np.zeros(count, np.float32))


@case()
def external_data_of_many_small_files(folder: Path) -> None:
    """Each is open for a moment only."""
    room = inside(folder)
    tensors = []
    for n in range(3000):
        (room / f"{n}.bin").write_bytes(b"\0" * 24)
        weight = stored(f"{n}.bin").graph.initializer[0]
        weight.name = f"w{n}"
        tensors.append(weight)
    made = model([node("Sum", ["x", *(t.name for t in tensors)], ["y"])], tensors)
    clew.load(written(room, made))


@case("M013", "ok")
def model_file_written_over(folder: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((512, 512), np.float32), "w")
    made = model([node("MatMul", ["x", "w"], ["y"])], [weight], inputs=[value("x", [2, 512])])
    path = written(folder, made)
    module = clew.load(path)
    path.write_bytes(b"short")
    clew.compile(module, threads=1, cache=False)


@case()
def reshape_asks_for_another_count(folder: Path) -> None:
    run(model([node("Reshape", ["x", "s"], ["y"])], [ints("s", [7, -1])]), X)
