"""Kinds of files that users give as models and that clew does not read, and what to do with each.

This is the one table of them; `recognize.py` finds a file's kind from its first bytes. The formats
that clew reads are `Format`s of `frontends/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of file: `what` it is, as in "it is a ...", and `advice`, a complete sentence."""

    what: str
    advice: str


_TF2ONNX: Final = "convert it: pip install tf2onnx; python -m tf2onnx.convert"
_MODULE: Final = (
    "it holds no graph, only tensors. Make the module, load them into it "
    "(model.load_state_dict), and call clew.from_torch(model.eval(), example_inputs)"
)
_CORE_ML: Final = "give the ONNX or PyTorch model that it was made from: Core ML exports none"
_ARCHIVE: Final = "unpack it, and give the model's file in it"
_PICKLE: Final = (
    "reading a pickle runs code in it, so clew reads none. Load it in Python if you trust whoever "
    "wrote it, and give clew the model: clew.from_torch for PyTorch, skl2onnx.to_onnx for "
    "scikit-learn"
)

KINDS: Final[Mapping[str, Kind]] = {
    "saved": Kind(
        "a compiled model that clew saved",
        "it is already compiled: clew.load_compiled(path), or clew run. It holds native code, "
        "which runs: open only files of writers that you trust",
    ),
    # PyTorch.
    "torchscript": Kind(
        "a TorchScript archive",
        "load it in Python if you trust whoever wrote it, and import it with example inputs: "
        "clew.from_torch(torch.jit.load(path).eval(), (x,))",
    ),
    "torch_save": Kind(
        "a file of torch.save",
        "it is a pickle, which runs code when it is read, so clew reads none. If it holds a "
        "module: clew.from_torch(torch.load(path, weights_only=False).eval(), (x,)), if you trust "
        f"whoever wrote it; if it holds a state_dict: {_MODULE}",
    ),
    "aotinductor": Kind(
        "native code of AOTInductor, for one kind of machine",
        "export the module itself: torch.export.save(torch.export.export(model, args), 'm.pt2')",
    ),
    "executorch": Kind(
        "an ExecuTorch program",
        "it is compiled for ExecuTorch. Export the module itself: clew.from_torch(model, args)",
    ),
    "safetensors": Kind("a file of weights (safetensors)", _MODULE),
    "ggml": Kind(
        "a file of weights for early versions of llama.cpp (GGML)",
        "convert the model again, to GGUF",
    ),
    # TensorFlow, Keras, JAX.
    "circle": Kind(
        "a Circle model",
        "give the TFLite model that it was made of, as in clew.compile('model.tflite')",
    ),
    "keras": Kind(
        "a Keras model",
        "load it in Python and export it: keras.models.load_model(path).export('model.onnx', "
        "format='onnx')",
    ),
    "hdf5": Kind(
        "an HDF5 file, as Keras wrote them (.h5)",
        "with a whole model in it: keras.models.load_model(path).export('model.onnx', "
        "format='onnx'). With weights alone, make the model first",
    ),
    "keras_config": Kind(
        "the configuration of a Keras model, without its weights",
        "make the model in Python, load its weights, and export it: "
        "keras.models.model_from_json(text); model.load_weights(path); "
        "model.export('model.onnx', format='onnx')",
    ),
    "tfjs": Kind(
        "a TensorFlow.js model",
        "convert it: pip install tensorflowjs; tensorflowjs_converter --input_format "
        "tfjs_layers_model --output_format keras model.json model.keras; or, for a graph model, "
        f"{_TF2ONNX} --tfjs model.json --output model.onnx",
    ),
    "tflite_source": Kind(
        "a TFLite model as C source, for microcontrollers",
        "write its bytes to a file: python -c \"import re, sys; open('model.tflite', "
        "'wb').write(bytes(int(x, 16) for x in re.findall(r'0x[0-9a-fA-F]{1,2}\\b', "
        'open(sys.argv[1]).read())))" FILE',
    ),
    "saved_model": Kind(
        "a TensorFlow SavedModel", f"{_TF2ONNX} --saved-model FOLDER --output model.onnx"
    ),
    "tensorflow_graph": Kind(
        "a frozen TensorFlow graph",
        f"{_TF2ONNX} --graphdef FILE --inputs NAME:0 --outputs NAME:0 --output model.onnx",
    ),
    "checkpoint": Kind(
        "a TensorFlow checkpoint", "it holds weights alone: make the model, and export it as ONNX"
    ),
    "mlir": Kind(
        "MLIR (StableHLO, TOSA, or another dialect)",
        "export the model that it was made from as ONNX",
    ),
    # Other engines.
    "openvino": Kind(
        "a model of OpenVINO (IR)",
        "OpenVINO exports none back: give the ONNX or PyTorch model that it was made from",
    ),
    "coreml": Kind(
        "a Core ML model",
        _CORE_ML,
    ),
    "tensorrt": Kind(
        "a TensorRT engine",
        "it is compiled for one GPU: give the ONNX model that it was built from",
    ),
    "ort": Kind(
        "a model in ONNX Runtime's own format (.ort)", "give the .onnx file that it was made from"
    ),
    "onnx_text": Kind(
        "an ONNX model as text",
        "write it as binary: onnx.save(onnx.load(path, format='textproto'), 'model.onnx'); "
        "for ONNX's own syntax, onnx.parser.parse_model",
    ),
    "onnx_json": Kind(
        "an ONNX model as JSON",
        "write it as binary: onnx.save(onnx.load(path, format='json'), 'model.onnx')",
    ),
    "mnn": Kind(
        "a model of MNN",
        "MNN exports none back: give the ONNX, TFLite or PyTorch model that it was made from",
    ),
    "torchserve": Kind(
        "an archive of TorchServe (.mar)", "unpack it, and give the model in it: unzip FILE"
    ),
    "refusal": Kind(
        "an error message of a server, in place of the file",
        "the download failed: open the file in an editor to see why, and download it again",
    ),
    "ncnn": Kind(
        "a model of ncnn",
        "give the ONNX or PyTorch model that it was made from",
    ),
    "caffe": Kind("a Caffe model", "convert it: pip install caffe2onnx"),
    "paddle": Kind(
        "a PaddlePaddle model",
        "convert it: pip install paddle2onnx; paddle2onnx --model_dir FOLDER --save_file "
        "model.onnx",
    ),
    "mxnet": Kind("an MXNet model", "convert it: mxnet.onnx.export_model(symbol, params, ...)"),
    "darknet": Kind(
        "a Darknet configuration",
        "export the network as ONNX, for example with "
        "ultralytics: yolo export model=NAME format=onnx",
    ),
    "relay": Kind(
        "a Relay or TVM module",
        "give the model that it was imported from; docs/tutorials/from-relay.md compares the two",
    ),
    "rknn": Kind("a model for Rockchip's NPU", "give the ONNX model that it was made from"),
    # Trees and tables.
    "pmml": Kind(
        "a PMML document",
        "export the model from the library that made it as ONNX: skl2onnx or onnxmltools",
    ),
    "xgboost": Kind(
        "an XGBoost model",
        "convert it: onnxmltools.convert_xgboost(model, initial_types=[...])",
    ),
    "lightgbm": Kind(
        "a LightGBM model",
        "convert it: onnxmltools.convert_lightgbm(model, initial_types=[...])",
    ),
    "catboost": Kind(
        "a CatBoost model", "export it: model.save_model('model.onnx', format='onnx')"
    ),
    "sklearn": Kind(
        "a pickled model of scikit-learn",
        "reading a pickle runs code in it, so clew reads none. Load it in Python if you trust "
        "whoever wrote it (joblib.load), and convert it: skl2onnx.to_onnx(model, X[:1])",
    ),
    "pickle": Kind("a Python pickle", _PICKLE),
    "joblib": Kind("a compressed file, as joblib writes them", _PICKLE),
    # Data and packages.
    "arrays": Kind(
        "NumPy arrays", "they are not model: clew run takes them with --input NAME=FILE"
    ),
    "parquet": Kind("a Parquet table", "it is data, no model"),
    "zip": Kind("a ZIP archive", _ARCHIVE),
    "tar": Kind("a tar archive", _ARCHIVE),
    "gzip": Kind("a gzip file", f"{_ARCHIVE}: gunzip FILE"),
    "bzip2": Kind("a bzip2 file", f"{_ARCHIVE}: bunzip2 FILE"),
    "xz": Kind("an xz file", f"{_ARCHIVE}: unxz FILE"),
    "compressed": Kind("a compressed file", f"{_ARCHIVE} (unzstd, 7z x, unrar x)"),
    "elf": Kind(
        "a native library or program",
        "it is compiled: give the model that it was made from. clew saves its own in .clew files",
    ),
    "python": Kind(
        "Python code",
        "import it and give clew the module: clew.from_torch(model, args). Extensions are given "
        "with extend= or --extend",
    ),
    "json": Kind("JSON", "clew reads graphs as ONNX, .pt2 or its text form; graph.json is output"),
    "pointer": Kind(
        "a Git LFS pointer, in place of the file",
        "fetch the file: git lfs install; git lfs pull",
    ),
    "web_page": Kind(
        "a web page, in place of the file",
        "the download failed: open the file in an editor to see why, and take the file's direct "
        "(raw) address",
    ),
    "empty": Kind("an empty file", "write or download it again"),
    # Folders.
    "coreml_folder": Kind(
        "a Core ML package",
        _CORE_ML,
    ),
    "hub_folder": Kind(
        "the folder of a Hugging Face model",
        "export it: optimum-cli export onnx --model FOLDER OUT; or load it with transformers "
        "(from_pretrained) and call clew.from_torch(model, args)",
    ),
    "folder": Kind("a folder", "give the model's file in it"),
}
"""Kinds by name."""


def holding(kind: Kind, what: str, advice: str) -> Kind:
    """Returns the kind of an archive that holds something, with advice about that."""
    return Kind(
        f"{kind.what} that holds {what}", f"{kind.advice}; {advice}" if advice else kind.advice
    )


UNKNOWN: Final = Kind(
    "of a kind that clew does not know",
    "export it as ONNX with the library that made it, or from PyTorch with clew.from_torch",
)

# By the first bytes.
PREFIXES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89CLEW\r\n\x1a", "saved"),
    (b"GGML", "ggml"),
    (b"lmgg", "ggml"),
    (b"tjgg", "ggml"),
    (b"fmgg", "ggml"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"ptrt", "tensorrt"),
    (b"ftrt", "tensorrt"),
    (b"ML\xefR", "mlir"),
    (b"7767517\n", "ncnn"),
    (b"7767517\r\n", "ncnn"),
    (b"\xdd\x85\x76\x00", "ncnn"),
    (b"RKNN", "rknn"),
    (b"CBM1", "catboost"),
    (b"PAR1", "parquet"),
    (b"\x93NUMPY", "arrays"),
    (b"\x7fELF", "elf"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"7z\xbc\xaf\x27\x1c", "compressed"),
    (b"Rar!", "compressed"),
    (b"ZF0x", "joblib"),
    (b"version https://git-lfs.github.com/spec", "pointer"),
    (b"tree\nversion=", "lightgbm"),
    (b'#[version = "', "relay"),
    (b"# from tvm", "relay"),
    (b"[net]", "darknet"),
    (b"[convolutional]", "darknet"),
    (b"#!/usr/bin/env python", "python"),
)
# FlatBuffers have their identifier at byte 4.
IDENTIFIERS: Final[Mapping[bytes, str]] = {
    b"CIR0": "circle",
    b"ORTM": "ort",
    b"ET12": "executorch",
    b"ET13": "executorch",
}
# By words near the beginning of a text, the first that occurs.
WORDS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"<!doctype html", "web_page"),
    (b"<html", "web_page"),
    (b"<PMML", "pmml"),
    (b"<net ", "openvino"),
    (b"<Error>", "refusal"),
    (b"0x54, 0x46, 0x4c, 0x33", "tflite_source"),
    (b"0x54,0x46,0x4c,0x33", "tflite_source"),
    (b'"modelTopology"', "tfjs"),
    (b'"weightsManifest"', "tfjs"),
    (b'"irVersion"', "onnx_json"),
    (b'"keras_version"', "keras_config"),
    (b'"registered_name"', "keras_config"),
    (b'"base_code"', "paddle"),
    (b'"learner"', "xgboost"),
    (b'"tree_info"', "lightgbm"),
    (b'"mxnet_version"', "mxnet"),
    (b"tensorflow.", "tensorflow_graph"),
    (b"stablehlo.", "mlir"),
    (b"func.func", "mlir"),
    (b"module {", "mlir"),
    (b"module @", "mlir"),
    (b"@I.ir_module", "relay"),
    (b"ir_version:", "onnx_text"),
    (b"<ir_version", "onnx_text"),
    (b"layer {", "caffe"),
    (b"layers {", "caffe"),
    (b"import torch", "python"),
    (b"import numpy", "python"),
)
# By what the names of an archive's entries end in: all of the words.
MEMBERS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("/constants.pkl", "/data.pkl", "/version"), "torchscript"),
    (("/data.pkl", "/version"), "torch_save"),
    (("/data.pkl", "/byteorder"), "torch_save"),
    (("data/aotinductor/",), "aotinductor"),
    (("model.weights.h5", "config.json"), "keras"),
    (("saved_model.pb",), "saved_model"),
    (("Manifest.json", ".mlmodel"), "coreml"),
    (("MAR-INF/MANIFEST.json",), "torchserve"),
    ((".npy",), "arrays"),
)
# By the names in a folder.
FOLDERS: Final[tuple[tuple[str, str], ...]] = (
    ("saved_model.pb", "saved_model"),
    ("Manifest.json", "coreml_folder"),
    ("group1-shard1of1.bin", "tfjs"),
    ("inference.pdmodel", "paddle"),
    ("inference.json", "paddle"),
    ("checkpoint", "checkpoint"),
    ("config.json", "hub_folder"),
)
# By the name, where the bytes do not tell.
SUFFIXES: Final[Mapping[str, str]] = {
    ".caffemodel": "caffe", ".prototxt": "caffe", ".pdmodel": "paddle", ".pdiparams": "paddle",
    ".mlmodel": "coreml", ".mlpackage": "coreml", ".param": "ncnn", ".params": "mxnet",
    ".engine": "tensorrt", ".plan": "tensorrt", ".trt": "tensorrt", ".keras": "keras",
    ".h5": "hdf5", ".pb": "tensorflow_graph", ".pbtxt": "tensorflow_graph",
    ".ckpt": "torch_save", ".pt": "torch_save", ".pth": "torch_save", ".pkl": "pickle",
    ".pickle": "pickle", ".joblib": "pickle", ".py": "python", ".json": "json", ".mlir": "mlir",
    ".onnxtxt": "onnx_text", ".textproto": "onnx_text", ".xml": "openvino", ".cbm": "catboost",
    ".index": "checkpoint", ".safetensors": "safetensors", ".weights": "darknet",
    ".cfg": "darknet", ".ubj": "xgboost", ".pmml": "pmml", ".clew": "saved", ".tar": "tar",
    ".pte": "executorch", ".ort": "ort", ".mnn": "mnn", ".rknn": "rknn",
    ".mar": "torchserve",
}  # fmt: skip
