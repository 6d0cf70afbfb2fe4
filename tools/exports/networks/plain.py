"""Networks of plain torch for what the libraries lack: recurrent, generative, graphs, tables."""

from __future__ import annotations

import ast
import importlib
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from exports.entries import Entry, code_of, edges
from zoo.entries import Input, image, normal, tokens


def entries() -> Iterator[Entry]:
    """Yields the networks."""
    steps = Input("x", ("batch", "time", 12), normal)
    dims, others = {"batch": 2, "time": 10}, {"batch": 3, "time": 14}
    for cell in ("LSTM", "GRU", "RNN"):
        for layers, both in ((1, False), (2, True)):
            name = f"{cell.lower()}{'_bidirectional' if both else ''}"
            yield Entry(
                name,
                "recurrent",
                _made("recurrent", "recurrent", cell, layers, both),
                (steps,),
                dims,
                others,
            )
    yield Entry(
        "gru_tagger_states",
        "recurrent",
        _made("recurrent", "with_states"),
        (steps, Input("state", (1, "batch", 16), normal)),
        dims,
        others,
    )
    yield Entry(
        "lstm_cells",
        "recurrent",
        _made("recurrent", "cells"),
        (Input("x", ("batch", 6, 12), normal),),
        {"batch": 2},
        {"batch": 3},
    )
    yield Entry(
        "conv_lstm",
        "recurrent",
        _made("recurrent", "conv_lstm"),
        (Input("x", ("batch", 4, 3, 16, 16), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "crnn",
        "recurrent",
        _made("recurrent", "crnn"),
        (Input("x", ("batch", 1, 32, "width"), image),),
        {"batch": 1, "width": 64},
        {"batch": 2, "width": 96},
    )
    yield Entry(
        "deep_speech",
        "recurrent",
        _made("recurrent", "deep_speech"),
        (Input("x", ("batch", 1, 40, "time"), normal),),
        {"batch": 1, "time": 50},
        {"batch": 2, "time": 64},
    )
    yield Entry(
        "translator_attention",
        "recurrent",
        _made("recurrent", "translator"),
        (
            Input("source", ("batch", "length"), tokens(50)),
            Input("target", ("batch", 5), tokens(50)),
        ),
        {"batch": 2, "length": 8},
        {"batch": 3, "length": 11},
    )
    yield Entry(
        "temporal_convolutions",
        "recurrent",
        _made("recurrent", "temporal_convolutions"),
        (Input("x", ("batch", 8, "time"), normal),),
        {"batch": 1, "time": 64},
        {"batch": 2, "time": 80},
    )
    yield Entry(
        "s4d",
        "state-space",
        _made("recurrent", "s4d"),
        (Input("x", ("batch", 32, 8), normal),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "selective_scan",
        "state-space",
        _made("recurrent", "selective_scan"),
        (Input("x", ("batch", 12, 16), normal),),
        {"batch": 1},
        {"batch": 2},
    )

    yield Entry(
        "unet_diffusion",
        "generative",
        _made("generative", "diffusion"),
        (
            Input("x", ("batch", 4, 16, 16), normal),
            Input("step", ("batch",), _steps),
            Input("text", ("batch", 6, 32), normal),
        ),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "diffusion_transformer",
        "generative",
        _made("generative", "dit"),
        (Input("x", ("batch", 4, 16, 16), normal), Input("step", ("batch",), _steps)),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "vae",
        "generative",
        _made("generative", "vae"),
        (Input("x", ("batch", 3, 32, 32), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "vq_vae",
        "generative",
        _made("generative", "vq_vae"),
        (Input("x", ("batch", 3, 32, 32), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "dcgan",
        "generative",
        _made("generative", "dcgan"),
        (Input("z", ("batch", 16), normal),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "stylegan",
        "generative",
        _made("generative", "stylegan"),
        (Input("z", ("batch", 16), normal),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "cyclegan",
        "generative",
        _made("generative", "cyclegan"),
        (Input("x", ("batch", 3, "height", "width"), image),),
        {"batch": 1, "height": 32, "width": 32},
        {"batch": 2, "height": 40, "width": 48},
    )
    yield Entry(
        "pixel_cnn",
        "generative",
        _made("generative", "pixel_cnn"),
        (Input("x", ("batch", 1, 16, 16), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "wavenet",
        "generative",
        _made("generative", "wavenet"),
        (Input("x", ("batch", 1, "time"), normal),),
        {"batch": 1, "time": 64},
        {"batch": 2, "time": 80},
    )
    yield Entry(
        "real_nvp",
        "generative",
        _made("generative", "flow"),
        (Input("z", ("batch", 8), normal),),
        {"batch": 4},
        {"batch": 5},
    )
    yield Entry(
        "nerf",
        "generative",
        _made("generative", "nerf"),
        (Input("rays", ("rays", 3), normal),),
        {"rays": 64},
        {"rays": 80},
    )

    yield Entry(
        "unet",
        "segmentation",
        _made("generative", "unet"),
        (Input("x", ("batch", 3, "height", "width"), image),),
        {"batch": 1, "height": 48, "width": 48},
        {"batch": 2, "height": 56, "width": 50},
    )
    yield Entry(
        "espcn",
        "restoration",
        _made("generative", "espcn"),
        (Input("x", ("batch", 1, "height", "width"), image),),
        {"batch": 1, "height": 24, "width": 24},
        {"batch": 2, "height": 30, "width": 20},
    )
    yield Entry(
        "edsr",
        "restoration",
        _made("generative", "edsr"),
        (Input("x", ("batch", 3, "height", "width"), image),),
        {"batch": 1, "height": 24, "width": 24},
        {"batch": 2, "height": 30, "width": 20},
    )
    yield Entry(
        "deformable",
        "vision-blocks",
        _made("others", "deformable"),
        (Input("x", (1, 3, 24, 24), image),),
        exporters=("dynamo",),
    )
    yield Entry(
        "spatial_transformer",
        "vision-blocks",
        _made("others", "spatial_transformer"),
        (Input("x", ("batch", 1, 28, 28), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "capsules",
        "vision-blocks",
        _made("others", "capsules"),
        (Input("x", ("batch", 1, 28, 28), image),),
        {"batch": 1},
        {"batch": 2},
    )
    yield Entry(
        "point_net",
        "points",
        _made("others", "point_net"),
        (Input("points", ("batch", 3, "n"), normal),),
        {"batch": 1, "n": 64},
        {"batch": 2, "n": 80},
    )
    yield Entry(
        "point_neighbors",
        "points",
        _made("others", "point_neighbors"),
        (Input("points", ("batch", "n", 3), normal),),
        {"batch": 1, "n": 32},
        {"batch": 2, "n": 40},
    )

    graph = (Input("features", ("nodes", 12), normal), Input("edges", (2, "edges"), edges(20)))
    sizes, larger = {"nodes": 20, "edges": 50}, {"nodes": 24, "edges": 70}
    for name in ("gcn", "gat", "gin", "message_passing"):
        yield Entry(name, "graph", _made("others", name), graph, sizes, larger)
    categories, numbers = (
        Input("categories", ("batch", 4), tokens(10)),
        Input("numbers", ("batch", 6), normal),
    )
    for name in ("tab_transformer", "dlrm", "wide_and_deep", "deep_fm"):
        yield Entry(
            name, "table", _made("others", name), (categories, numbers), {"batch": 4}, {"batch": 7}
        )
    yield Entry(
        "two_towers_bag",
        "table",
        _made("others", "two_towers"),
        (Input("words", ("batch", 6), tokens(50)), Input("items", ("batch", 3), tokens(50))),
        {"batch": 4},
        {"batch": 7},
    )
    series = Input("x", ("batch", 32, 3), normal)
    for name in ("n_beats", "patch_mixer", "informer_like"):
        yield Entry(name, "series", _made("recurrent", name), (series,), {"batch": 2}, {"batch": 3})
    yield Entry(
        "greedy_decoder",
        "control-flow",
        _made("others", "greedy"),
        (Input("state", (1, 16), normal),),
        exporters=("torchscript",),
    )
    yield Entry(
        "early_exit",
        "control-flow",
        _made("others", "early_exit"),
        (Input("x", (1, 16), normal),),
        exporters=("dynamo",),
    )
    yield Entry(
        "masked_select",
        "control-flow",
        _made("others", "masked_select"),
        (Input("x", ("n", 4), normal),),
        {"n": 20},
        {"n": 30},
    )
    yield Entry(
        "top_k_boxes",
        "control-flow",
        _made("others", "top_k"),
        (Input("scores", (1, 60), normal), Input("values", (1, 60, 4), normal)),
    )
    yield Entry(
        "unique_words",
        "control-flow",
        _made("others", "unique"),
        (Input("ids", (20,), tokens(12)),),
    )
    yield Entry(
        "box_suppression",
        "control-flow",
        _made("others", "suppression"),
        (Input("boxes", ("n", 4), normal), Input("scores", ("n",), normal)),
        {"n": 30},
        {"n": 40},
        exporters=("torchscript",),
    )


def _steps(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.integers(0, 1_000, shape, dtype="int64")


_FOLDER = Path(__file__).with_name("torch_modules")


def _made(kind: str, name: str, *arguments: Any) -> Callable[[], Any]:
    """Returns a function that makes the network `name` of the file `kind` in `torch_modules`."""
    return partial(_make, kind, name, arguments, fingerprint=_fingerprint(kind, name))


def _fingerprint(kind: str, name: str) -> int:
    """Returns a checksum of the network's function, and of all in its file that has no network."""
    parts = [p for p in _parts(kind) if p.name == name or p.name.startswith("_")]
    return zlib.crc32("".join(code_of(ast.unparse(p)) for p in parts).encode())


@cache
def _parts(kind: str) -> list[ast.FunctionDef | ast.ClassDef]:
    tree = ast.parse((_FOLDER / f"{kind}.py").read_text())
    return [p for p in tree.body if isinstance(p, (ast.FunctionDef, ast.ClassDef))]


def _make(kind: str, name: str, arguments: tuple[Any, ...], fingerprint: int) -> Any:
    module = importlib.import_module(f"exports.networks.torch_modules.{kind}")  # imports torch
    return getattr(module, name)(*arguments)
