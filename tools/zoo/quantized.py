"""Networks of the zoo, quantized to 8 bits by ONNX Runtime's quantizer.

`qdq_*`: static, with `QuantizeLinear` and `DequantizeLinear` around each operator; signed weights
with a scale per channel and unsigned activations, whose ranges come from drawn inputs.
`dynamic_*`: `MatMulInteger` of activations that are quantized at each run. `qdq7_*` and
`dynamic7_*`: likewise, with weights of 7 bits (`reduce_range`), which ONNX Runtime recommends for
CPUs without VNNI. ONNX Runtime is needed only where a model must be built.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import version_converter

from zoo.entries import Entry

_Selections: TypeAlias = "tuple[tuple[str, tuple[str, ...]], ...]"

_STATIC: _Selections = (
    ("full", ("light_resnet50", "mobilenet_v2", "efficientnet_b0", "vit_base", "bert_base")),
    ("quick", ("resnet_tiny", "mobilenet_tiny", "vit_tiny", "bert_tiny")),
)
_DYNAMIC = (("full", ("bert_base",)), ("quick", ("bert_tiny",)))
_REDUCED: _Selections = (
    ("reduced", ("light_resnet50", "mobilenet_v2", "bert_base")),
    ("quick", ("resnet_tiny",)),
)
_DYNAMIC_REDUCED = (("reduced", ("bert_base",)),)
_CALIBRATED = 4
_LEAST_OPSET = 17  # from 13 on, weights have a scale per channel


def entries(known: Mapping[str, Entry]) -> Iterator[Entry]:
    """Yields an entry for each quantized form of the models in `known`."""
    forms: tuple[tuple[str, Callable[[Entry, Path], None], _Selections], ...] = (
        ("qdq", partial(_static, reduce_range=False), _STATIC),
        ("dynamic", partial(_dynamic, reduce_range=False), _DYNAMIC),
        ("qdq7", partial(_static, reduce_range=True), _REDUCED),
        ("dynamic7", partial(_dynamic, reduce_range=True), _DYNAMIC_REDUCED),
    )
    for way, form, selections in forms:
        for size, names in selections:
            for name in names:
                source = known[name]
                yield replace(
                    source,
                    name=f"{way}_{name}",
                    groups=frozenset({"quantized", f"quantized-{size}"}),
                    build=partial(form, source),
                    sources=(Path(__file__), *source.sources),
                )


def _static(source: Entry, target: Path, *, reduce_range: bool) -> None:
    from onnxruntime import quantization  # noqa: PLC0415 - a peer

    class Feeds(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._seeds = iter(range(100, 100 + _CALIBRATED))

        def get_next(self) -> dict[str, Any] | None:
            seed = next(self._seeds, None)
            return None if seed is None else dict(source.draw(np.random.default_rng(seed), {}))

    with tempfile.TemporaryDirectory() as folder:
        quantization.quantize_static(
            _prepared(source, Path(folder)),
            target,
            Feeds(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=reduce_range,
        )


def _dynamic(source: Entry, target: Path, *, reduce_range: bool) -> None:
    from onnxruntime import quantization  # noqa: PLC0415 - a peer

    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepared(source, Path(folder))
        quantization.quantize_dynamic(prepared, target, reduce_range=reduce_range)


def _prepared(source: Entry, folder: Path) -> Path:
    """Returns the model as ONNX Runtime's guide prepares it: optimized by its own rules, and with
    shapes.
    """
    from onnxruntime.quantization import shape_inference  # noqa: PLC0415 - a peer

    plain, prepared = folder / "plain.onnx", folder / "prepared.onnx"
    source.build(plain)
    model = onnx.load(plain)
    if next(o.version for o in model.opset_import if not o.domain) < _LEAST_OPSET:
        onnx.save(version_converter.convert_version(model, _LEAST_OPSET), plain)
    shape_inference.quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    return prepared
