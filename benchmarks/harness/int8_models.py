"""The models that are quantized: trained ones from packages, and networks of the zoo, each with
inputs of a declared kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import zoo
from exports.packages import MODELS, Packaged
from harness.samples import KINDS, Kind, words
from harness.sentences import minilm, sentences

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
_PHOTOGRAPH: Final = KINDS["photograph"]
_HELD: Final = 10_000  # the first seed of samples that are not calibrated on
# Inputs of the zoo's networks that stand for something of users; others are drawn.
_ZOO: Final[Mapping[str, Mapping[str, Kind]]] = {
    "light_resnet50": {"gpu_0/data_0": _PHOTOGRAPH},
    "mobilenet_v2": {"pixels": _PHOTOGRAPH},
    "efficientnet_b0": {"pixels": _PHOTOGRAPH},
    "encoder_small": {"input_ids": words(8_000)},
    "deit_small": {"pixels": _PHOTOGRAPH},
    "resnet18": {"pixels": _PHOTOGRAPH},
    "regnet_y_800mf": {"pixels": _PHOTOGRAPH},
    "light_squeezenet": {"data_0": _PHOTOGRAPH},
    "light_shufflenet": {"gpu_0/data_0": _PHOTOGRAPH},
    "vit_tiny": {"pixels": _PHOTOGRAPH},
    "bert_tiny": {"input_ids": words(1_000)},
    "distilbert": {"input_ids": words(4_000)},
    "keyword_spotting": {"spectrum": KINDS["mel spectrum"]},
}


@dataclass(frozen=True)
class Subject:
    """A model: whether it is trained, whether it is a transformer, its file, and samples by
    seed.
    """

    name: str
    trained: bool
    transformer: bool
    path: Callable[[], Path]
    sample: Callable[[int], Feed]

    def calibration(self, count: int) -> list[Feed]:
        """Returns samples to calibrate on."""
        return [self.sample(seed) for seed in range(count)]

    def held(self, count: int) -> list[Feed]:
        """Returns other samples."""
        return [self.sample(_HELD + seed) for seed in range(count)]


def subjects() -> Iterator[Subject]:
    """Yields the trained models, then the zoo's."""
    for model in MODELS:
        yield Subject(model.name, True, False, model.path, partial(_packaged, model))
    yield Subject("minilm", True, True, minilm, _sentence)
    transformers = zoo.names("transformer")
    for name in _ZOO:
        path = partial(_zoo_path, name)
        yield Subject(name, False, name in transformers, path, partial(_of_zoo, name))


def _sentence(seed: int) -> Feed:
    """Returns one of the sentences: from the front to calibrate, from the back to compare."""
    return sentences()[seed if seed < _HELD else _HELD - 1 - seed]


def _zoo_path(name: str) -> Path:
    return Path(zoo.path(name))


def _packaged(model: Packaged, seed: int) -> Feed:
    return _as(model.draw(seed), {n: KINDS[k] for n, k in model.kinds.items()}, seed)


def _of_zoo(name: str, seed: int) -> Feed:
    return _as(zoo.inputs(name, seed), _ZOO[name], seed)


def _as(drawn: Mapping[str, Array], kinds: Mapping[str, Kind], seed: int) -> Feed:
    """Returns drawn inputs, those with a kind replaced."""
    rng = np.random.default_rng((seed, 1))
    found = dict(drawn)
    for name, kind in kinds.items():
        found[name] = kind(rng, drawn[name].shape).astype(drawn[name].dtype)
    return found
