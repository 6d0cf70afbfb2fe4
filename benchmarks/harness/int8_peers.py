"""Static int8 by other tools: files that ONNX Runtime's `quantize_static` and NNCF write.

Files are kept in `.cache/int8`, in a folder per model, calibration data and version of the tools.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.version_converter

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
_FOLDER: Final = Path(__file__).parents[2] / ".cache" / "int8"
_OPSET: Final = 13  # the first with scales per channel
_TOOLS: Final = ("onnx", "onnxruntime", "nncf")


@dataclass(frozen=True)
class Peer:
    """A way to quantize. `write(model, file, samples)` makes the file. `engine` is the tool's own,
    and `shown` the name in tables.
    """

    shown: str
    engine: str
    write: Callable[[Path, Path, Sequence[Feed]], None]


CALIBRATORS: Final = ("MinMax", "Entropy", "Percentile")


def peers(transformer: bool, calibrators: Sequence[str] = CALIBRATORS) -> list[Peer]:
    """Returns the ways: calibrators of ONNX Runtime, and NNCF by default. For transformers, NNCF
    has settings of its own, which are taken as well.
    """
    found = [
        Peer(f"ORT {method}", "onnxruntime", partial(_onnxruntime, method))
        for method in calibrators
    ]
    found.append(Peer("NNCF", "openvino", partial(_nncf, False)))
    if transformer:
        found.append(Peer("NNCF transformer", "openvino", partial(_nncf, True)))
    return found


def key(path: Path, samples: Sequence[Feed]) -> str:
    """Returns a short hash of what the files depend on."""
    digest = hashlib.sha256(path.read_bytes())
    for tool in _TOOLS:
        digest.update(metadata.version(tool).encode())
    for sample in samples:
        for name, value in sample.items():
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def folder(key: str) -> Path:
    """Returns the folder for a key, made if it is not there."""
    found = _FOLDER / key
    found.mkdir(parents=True, exist_ok=True)
    return found


def file_of(peer: Peer, key: str) -> Path:
    """Returns the file that a peer's form of a model is kept in."""
    return folder(key) / f"{peer.shown.replace(' ', '-')}.onnx"


def made(peer: Peer, path: Path, samples: Sequence[Feed], key: str) -> Path:
    """Returns the file that a peer makes of a model. Raises RuntimeError if it fails."""
    file = file_of(peer, key)
    failed = file.with_suffix(".txt")
    if failed.exists():
        raise RuntimeError(failed.read_text())
    if file.exists():
        return file
    unfinished = file.with_name(f"unfinished-{file.name}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            peer.write(path, unfinished, samples)
    except Exception as error:  # any failure of a peer is a result
        failed.write_text(f"{type(error).__name__}: {str(error)[:200]}")
        raise RuntimeError(failed.read_text()) from error
    unfinished.rename(file)
    return file


def _onnxruntime(method: str, path: Path, file: Path, samples: Sequence[Feed]) -> None:
    from onnxruntime import quantization as ort  # noqa: PLC0415 - only where it is a peer

    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    ort.quantize_static(
        str(_prepared(path, file.parent)),
        str(file),
        Reader(),
        quant_format=ort.QuantFormat.QDQ,
        per_channel=True,
        activation_type=ort.QuantType.QUInt8,
        weight_type=ort.QuantType.QInt8,
        calibrate_method=getattr(ort.CalibrationMethod, method),
    )


def _prepared(path: Path, folder: Path) -> Path:
    """Returns the model after ONNX Runtime's preparation, which is optional, in a new opset."""
    from onnxruntime.quantization.shape_inference import (  # noqa: PLC0415 - as above
        quant_pre_process,
    )

    prepared = folder / "prepared.onnx"
    if prepared.exists():
        return prepared
    try:
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    except Exception:  # it fails on some models
        shutil.copy(path, prepared)
    model = onnx.load(prepared)
    if _opset(model) < _OPSET:
        onnx.save(onnx.version_converter.convert_version(model, _OPSET), prepared)
    return prepared


def _nncf(transformer: bool, path: Path, file: Path, samples: Sequence[Feed]) -> None:
    import nncf  # noqa: PLC0415 - only where it is a peer

    model = onnx.load(path)
    if _opset(model) < _OPSET:  # NNCF refuses them
        model = onnx.version_converter.convert_version(model, _OPSET)
    kind = {"model_type": nncf.ModelType.TRANSFORMER} if transformer else {}
    found = nncf.quantize(model, nncf.Dataset(list(samples)), subset_size=len(samples), **kind)
    onnx.save(found, file)


def _opset(model: onnx.ModelProto) -> int:
    return next(int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx"))
