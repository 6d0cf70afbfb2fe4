"""What files are, by their bytes, and what to do with them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import random
import shlex
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from google.protobuf.json_format import MessageToJson
from onnx import TensorProto, helper
from safetensors.numpy import save_file

import clew
from clew.frontends.formats import OWN, recognized, recognized_in_memory
from clew.support.kinds import FOLDERS, IDENTIFIERS, KINDS, MEMBERS, PREFIXES, SUFFIXES, WORDS
from clew.support.recognize import kind_of_name


def _zip(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return stream.getvalue()


def _tar(data: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        folder, file = tarfile.TarInfo("folder"), tarfile.TarInfo("folder/model")
        folder.type, file.size = tarfile.DIRTYPE, len(data)
        archive.addfile(folder)
        archive.addfile(file, io.BytesIO(data))
    return stream.getvalue()


def _model(weights: int = 1) -> onnx.ModelProto:
    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [weights])

    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "graph",
        [value("x")],
        [value("y")],
        [onnx.numpy_helper.from_array(np.ones(weights, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_NODE = b"\x0a\x01x\x12\x0bPlaceholder"
_CASES: list[tuple[str, bytes, str]] = [
    ("model", _model().SerializeToString(), "onnx"),
    ("model.bin", _model(100_000).SerializeToString(), "onnx"),
    ("model.bin", b"clew 1, frontend onnx\n", "text"),
    ("model.bin", b"\x89CLEW\r\n\x1a", "saved"),
    ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(99), "tflite"),
    ("m.onnx", b"\x1c\0\0\0TFL3" + bytes(99), "tflite"),
    ("m.tflite", b"\x1c\0\0\0CIR0" + bytes(99), "circle"),
    ("m.bin", b"GGUF\3\0\0\0", "gguf"),
    ("m.bin", b"tjgg\1\0\0\0", "ggml"),
    ("m.bin", struct.pack("<Q", 99) + b'{"a":{"dtype":"F32"}}', "safetensors"),
    ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(99), "hdf5"),
    ("m.bin", _zip("metadata.json", "config.json", "model.weights.h5"), "keras"),
    ("m.pt", _zip("m/data.pkl", "m/constants.pkl", "m/code/a.py", "m/version"), "torchscript"),
    ("m.pth", _zip("m/data.pkl", "m/data/0", "m/version"), "torch_save"),
    ("m.bin", _zip("m/archive_format", "m/models/model.json"), "pt2"),
    ("m.bin", _zip("version", "serialized_exported_program.json"), "pt2"),
    ("m.bin", _zip("m/data/aotinductor/model/a.so"), "aotinductor"),
    ("m.npz", _zip("a.npy"), "arrays"),
    ("m.zip", _zip("a"), "zip"),
    ("m.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02", "torch_save"),
    ("m.bin", pickle.dumps({"sklearn.tree": 1}), "sklearn"),
    ("m.bin", pickle.dumps([1, 2]), "pickle"),
    ("m.pkl", pickle.dumps([1], 0), "pickle"),
    ("m.joblib", zlib.compress(b"abc" * 99), "joblib"),
    ("m.pb", b"\x08\x01\x12\x05\x0a\x03abc", "saved_model"),
    ("m.bin", b"\x0a" + bytes([len(_NODE)]) + _NODE + b"\x22\x02\x08\x07", "tensorflow_graph"),
    ("m.bin", b"\x08\x04\x12\x03\x0a\x01x\xa2\x1f\x02\x08\x01", "coreml"),
    ("m.bin", b"\x0a\x03abc\xa2\x06\x02\x08\x01", "caffe"),
    ("m.bin", b"\x0a\x04\x08\x00\x10\x00\x22\x02\x08\x00", "paddle"),
    ("m.xml", b'<?xml version="1.0"?>\n<net name="m" version="11">', "openvino"),
    ("m.xml", b'<?xml version="1.0"?>\n<PMML xmlns="x">', "pmml"),
    ("m.engine", b"ptrt" + bytes(9), "tensorrt"),
    ("m.plan", bytes(9), "tensorrt"),
    ("m.param", b"7767517\n3 3\n", "ncnn"),
    ("m.txt", b'name: "x"\nlayer {\n', "caffe"),
    ("m.json", b'{"learner":{}}', "xgboost"),
    ("m.ubj", b"{L\0\0\0\0\0\0\0\x07learner{", "xgboost"),
    ("m.txt", b"tree\nversion=v4\n", "lightgbm"),
    ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "pointer"),
    ("m.onnx", b"\n<!DOCTYPE HTML>\n<html>", "web_page"),
    ("m.bin", b"ir_version: 8\n", "onnx_text"),
    ("m.mlir", b"module {\n  func.func @main", "mlir"),
    ("m.txt", b'#[version = "0.0.5"]\ndef @main', "relay"),
    ("m.tar", _tar(), "tar"),
    ("m.tar.gz", gzip.compress(b"x", mtime=0), "gzip"),
    ("m.xz", lzma.compress(b"x"), "xz"),
    ("m.bz2", bz2.compress(b"x"), "bzip2"),
    ("m.zst", b"\x28\xb5\x2f\xfd", "compressed"),
    ("m.bin", MessageToJson(_model()).encode(), "onnx_json"),
    ("m.bin", onnx.printer.to_text(_model()).encode(), "onnx_text"),
    ("m.bin", str(_model()).encode(), "onnx_text"),
    ("model.json", b'{"format": "layers-model", "modelTopology": {}}', "tfjs"),
    ("config.json", b'{"module": "keras", "registered_name": null}', "keras_config"),
    ("m.param.bin", b"\xdd\x85\x76\0\3\0\0\0", "ncnn"),
    ("m.json", b'{"base_code": {"magic": "pir"}}', "paddle"),
    (
        "m.cc",
        b"const unsigned char g_model[] = {\n  0x1c, 0x00, 0x00, 0x00, 0x54, 0x46, 0x4c, 0x33",
        "tflite_source",
    ),
    ("m.mar", _zip("model.pt", "MAR-INF/MANIFEST.json"), "torchserve"),
    ("m.onnx", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "refusal"),
    ("m.rknn", b"RKNN\0\0\0\0", "rknn"),
    ("m.mnn", bytes(9), "mnn"),
    ("m.so", b"\x7fELF", "elf"),
    ("m.py", b"import torch\n", "python"),
    ("m.bin", b"\x18\0\0\0ORTM", "ort"),
    ("m.onnx", b"", "empty"),
    ("m", b"", "empty"),
]


@pytest.mark.parametrize(("name", "data", "kind"), _CASES)
def test_files_are_what_their_bytes_say(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    own = {each.name: each for each in OWN}
    if kind in own:
        assert recognized(path) is own[kind]
    else:
        assert (recognized(path) or kind_of_name(path)) is KINDS[kind]
        with pytest.raises(clew.ClewError, match="I002") as caught:
            clew.load(path)
        assert KINDS[kind].what in str(caught.value)
        assert KINDS[kind].advice in str(caught.value)


def _saved_by_torch(what: str) -> bytes:
    stream = io.BytesIO()
    if what == "torchscript":
        torch.jit.save(torch.jit.script(torch.nn.ReLU()), stream)
    else:
        old = {"_use_new_zipfile_serialization": what != "old"}
        torch.save({"w": torch.ones(2)}, stream, **old)
    return stream.getvalue()


@pytest.mark.parametrize("what", ["torchscript", "state dict", "old"])
def test_files_of_torch(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(_saved_by_torch(what))
    assert recognized(path) is KINDS["torchscript" if what == "torchscript" else "torch_save"]


def test_a_file_of_safetensors(tmp_path: Path) -> None:
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.bin")
    assert recognized(tmp_path / "model.bin") is KINDS["safetensors"]


def test_archives_say_what_they_hold(tmp_path: Path) -> None:
    """However large it is, and in several layers."""
    noise = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    model = _model(50_000)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(noise, "w"))
    keras = _zip("metadata.json", "config.json", "model.weights.h5")
    for data, said in [
        (gzip.compress(model.SerializeToString()), "a gzip file that holds an ONNX model"),
        (lzma.compress(b"\x1c\0\0\0TFL3" + bytes(99)), "an xz file that holds a TFLite model"),
        (bz2.compress(b"GGUF\3\0\0\0"), "a bzip2 file that holds a GGUF model"),
        (_tar(b"\x1c\0\0\0TFL3" + bytes(99)), "a tar archive that holds a TFLite model"),
        (gzip.compress(_tar(keras)), "holds a tar archive that holds a Keras model"),
        (gzip.compress(keras)[:-40], "a gzip file that holds a"),
        (_zip("readme.txt", "face/detector.tflite"), "holds a TFLite model, face/detector.tflite"),
    ]:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        with pytest.raises(clew.ClewError, match="I002") as caught:
            clew.load(path)
        assert said in str(caught.value)
        assert "unpack it" in str(caught.value)


def test_c_source_becomes_a_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command of the advice."""
    monkeypatch.chdir(tmp_path)
    data = b"\x1c\0\0\0TFL3" + bytes(range(9))
    listed = ", ".join(f"0x{byte:02x}" for byte in data)
    Path("model.cc").write_text(f"alignas(16) const unsigned char m[] = {{{listed}}};\n")
    command = KINDS["tflite_source"].advice.partition(": ")[2].replace("FILE", "model.cc")
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True)
    assert Path("model.tflite").read_bytes() == data


def test_right_files_under_wrong_names_are_read(tmp_path: Path) -> None:
    for name in ("model", "model.bin", "model.pt2", "model.txt", "MODEL.TFLITE"):
        path = tmp_path / name
        path.write_bytes(_model(2).SerializeToString())
        np.testing.assert_array_equal(clew.compile(path)(np.array([1, 2], np.float32)), [2, 3])
    text = tmp_path / "text.onnx"
    text.write_text("clew 1, frontend text\ndef @main(%x: f32[2]) -> f32[2] {\n  return %x\n}\n")
    assert clew.load(text).main.params


def test_folders(tmp_path: Path) -> None:
    for name, kind in [("saved_model.pb", KINDS["saved_model"]), ("m.onnx", OWN[0].folder),
                       ("config.json", KINDS["hub_folder"]), ("x", KINDS["folder"])]:  # fmt: skip
        folder = tmp_path / f"in_{name}"
        folder.mkdir()
        (folder / name).touch()
        assert recognized(folder) is kind
        with pytest.raises(clew.ClewError, match="I002"):
            clew.load(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="devices of Linux")
def test_other_files_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    for path, reason in [(tmp_path / "pipe", "pipe"), (Path("/dev/zero"), "device"),
                         (huge, "does not know"), (tmp_path / "absent", "No such file"),
                         (tmp_path / "a\0b", "NUL")]:  # fmt: skip
        with pytest.raises(clew.ClewError, match=rf"I002.*{reason}"):
            clew.load(path)


def test_any_bytes_are_of_some_kind_or_none(tmp_path: Path) -> None:
    """Every beginning of every case, and noise."""
    draw = random.Random(0)
    path = tmp_path / "file"
    for _, data, _ in _CASES:
        for end in {0, 1, 2, 3, 5, 9, 17, draw.randrange(len(data) + 1)}:
            path.write_bytes(data[:end])
            recognized(path)
            recognized_in_memory(data[:end])
    for _ in range(300):
        path.write_bytes(draw.randbytes(draw.randrange(200)))
        recognized(path)


def test_bytes_are_recognized(tmp_path: Path) -> None:
    with pytest.raises(clew.ClewError, match=r"M060.*TFLite"):
        clew.load(b"\x1c\0\0\0TFL3")
    with pytest.raises(clew.ClewError, match=r"I002.*ONNX Runtime"):
        clew.load(b"\x1c\0\0\0ORTM")
    with pytest.raises(clew.ClewError, match=r"I002.*exported program"):
        clew.load(_zip("m/archive_format", "m/models/model.json"))


def test_the_tables_name_kinds() -> None:
    named = [name for table in (PREFIXES, WORDS, MEMBERS, FOLDERS) for _, name in table]
    assert {*named, *IDENTIFIERS.values(), *SUFFIXES.values()} <= set(KINDS)
    for kind in KINDS.values():
        assert kind.advice
        assert "\n" not in kind.advice
