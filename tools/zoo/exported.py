"""Networks of the transformers library and of plain torch, seeded and exported to ONNX.

No weights are downloaded: each network is made from a configuration and drawn at the scale trained
networks have (`zoo.redraw`). torch and transformers are needed only where a model must be built.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zoo.entries import Dims, Entry, Input, image, padding_mask, tokens

_SEED = 2026
_OPSET = 20


@dataclass(frozen=True)
class Recipe:
    """How to make one network: `make()` returns a torch module with tensor outputs.

    `dims` has the default size of each symbolic dimension; none is larger than `largest`.
    """

    name: str
    make: Callable[[], Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    groups: tuple[str, ...]
    dims: Dims | None = None
    largest: int = 512


def entries() -> Iterator[Entry]:
    """Yields an entry for each exported network."""
    for recipe in _recipes():
        yield Entry(
            name=recipe.name,
            groups=frozenset({"exported", *recipe.groups}),
            build=partial(_export, recipe),
            inputs=recipe.inputs,
            sources=(Path(__file__), Path(__file__).with_name("redraw.py")),
            dims=recipe.dims or {},
        )


def torch_module(name: str) -> Any:
    """Returns the torch module behind an exported model, its weights drawn, in evaluation mode."""
    recipe = next(recipe for recipe in _recipes() if recipe.name == name)
    return _module(recipe)


# ------------------------------------------------------------------------------------ the networks


def _recipes() -> Iterator[Recipe]:
    yield from _vision()
    yield from _language()


def _vision() -> Iterator[Recipe]:
    def classifier(name: str, size: int, make: Callable[[], Any], *groups: str) -> Recipe:
        pixels = Input("pixels", (1, 3, size, size), image)
        return Recipe(name, make, (pixels,), ("logits",), ("vision", *groups))

    yield classifier("mobilenet_v2", 224, partial(_mobilenet, 1.0, 224), "cnn", "full")
    yield classifier("mobilenet_tiny", 64, partial(_mobilenet, 0.35, 64), "cnn", "quick")
    resnet18 = partial(_resnet, (64, 128, 256, 512), (2, 2, 2, 2), "basic")
    yield classifier("resnet18", 224, resnet18, "cnn", "full")
    resnet_tiny = partial(_resnet, (16, 32), (1, 2), "bottleneck")
    yield classifier("resnet_tiny", 64, resnet_tiny, "cnn", "quick")
    convnext = partial(_convnext, (96, 192, 384, 768), (3, 3, 9, 3))
    yield classifier("convnext_tiny", 224, convnext, "cnn", "full")
    yield classifier("convnext_micro", 64, partial(_convnext, (24, 48), (1, 2)), "cnn", "quick")
    yield classifier("vit_base", 224, partial(_vit, 768, 12, 12, 224), "transformer", "full")
    yield classifier("vit_tiny", 64, partial(_vit, 128, 2, 4, 64), "transformer", "quick")
    spectrum = Input("spectrum", (1, 1, 49, 10), image)
    yield Recipe(
        "keyword_spotting", _keyword_spotting, (spectrum,), ("scores",), ("audio", "cnn", "quick")
    )


def _language() -> Iterator[Recipe]:
    def decoder(
        name: str, vocabulary: int, length: int, make: Callable[[], Any], *groups: str
    ) -> Recipe:
        ids = Input("input_ids", (1, length), tokens(vocabulary))
        return Recipe(name, make, (ids,), ("logits",), ("language", "transformer", *groups))

    def encoder(name: str, shape: tuple[int | str, int | str], *groups: str) -> Recipe:
        full = "full" in groups
        vocabulary = 30_522 if full else 1_000
        make = partial(_bert, *((768, 12, 12) if full else (128, 2, 4)), vocabulary)
        return Recipe(
            name,
            make,
            (
                Input("input_ids", shape, tokens(vocabulary)),
                Input("attention_mask", shape, padding_mask),
            ),
            ("last_hidden_state", "pooler_output"),
            ("language", "transformer", *groups),
            {"batch": 2, "sequence": 24} if "dynamic" in groups else None,
        )

    yield encoder("bert_base", (1, 128), "full")
    yield encoder("bert_tiny", (1, 32), "quick")
    yield encoder("bert_tiny_dynamic", ("batch", "sequence"), "quick", "dynamic")
    yield decoder("gpt2", 50_257, 64, partial(_gpt2, 768, 12, 12, 50_257), "full")
    yield decoder("gpt2_tiny", 1_000, 16, partial(_gpt2, 128, 2, 4, 1_000), "quick")
    yield decoder("llama_small", 32_000, 64, partial(_llama, 768, 12, 12, 4, 32_000), "full")
    yield decoder("llama_tiny", 1_000, 16, partial(_llama, 128, 2, 4, 2, 1_000), "quick")


def _transformers() -> Any:
    import transformers  # noqa: PLC0415 - optional

    transformers.logging.set_verbosity_error()
    return transformers


def _mobilenet(multiplier: float, size: int) -> Any:
    library = _transformers()
    config = library.MobileNetV2Config(
        depth_multiplier=multiplier, image_size=size, num_labels=1_000
    )
    return _first(library.MobileNetV2ForImageClassification(config), "pixel_values", "logits")


def _resnet(widths: tuple[int, ...], depths: tuple[int, ...], layer: str) -> Any:
    library = _transformers()
    config = library.ResNetConfig(
        embedding_size=widths[0],
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_type=layer,
        num_labels=1_000,
    )
    return _first(library.ResNetForImageClassification(config), "pixel_values", "logits")


def _convnext(widths: tuple[int, ...], depths: tuple[int, ...]) -> Any:
    library = _transformers()
    config = library.ConvNextConfig(
        num_stages=len(widths),
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_scale_init_value=0.3,  # trained values; the default 1e-6 would switch the blocks off
        num_labels=1_000,
    )
    return _first(library.ConvNextForImageClassification(config), "pixel_values", "logits")


def _vit(width: int, layers: int, heads: int, size: int) -> Any:
    library = _transformers()
    config = library.ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=size,
        num_labels=1_000,
    )
    return _first(library.ViTForImageClassification(config), "pixel_values", "logits")


def _bert(width: int, layers: int, heads: int, vocabulary: int) -> Any:
    library = _transformers()
    config = library.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    model = library.BertModel(config)
    return _wrap(
        model,
        lambda ids, mask: model(input_ids=ids, attention_mask=mask),
        ("last_hidden_state", "pooler_output"),
    )


def _gpt2(width: int, layers: int, heads: int, vocabulary: int) -> Any:
    library = _transformers()
    config = library.GPT2Config(
        vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, use_cache=False
    )
    return _first(library.GPT2LMHeadModel(config), "input_ids", "logits")


def _llama(width: int, layers: int, heads: int, groups: int, vocabulary: int) -> Any:
    library = _transformers()
    config = library.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=512,
        use_cache=False,
    )
    return _first(library.LlamaForCausalLM(config), "input_ids", "logits")


def _keyword_spotting() -> Any:
    """A depthwise separable network over a speech spectrum, twelve classes.

    Source: Zhang et al., Hello Edge: Keyword Spotting on Microcontrollers, 2017 (DS-CNN).
    """
    from torch import nn  # noqa: PLC0415 - optional

    def block(*convolutions: Any) -> list[Any]:
        layers = []
        for convolution in convolutions:
            layers += [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]
        return layers

    width = 64
    layers = block(nn.Conv2d(1, width, (10, 4), stride=(2, 2), padding=(5, 1), bias=False))
    for _ in range(4):
        layers += block(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.Conv2d(width, width, 1, bias=False),
        )
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 12), nn.Softmax(dim=-1)]
    return nn.Sequential(*layers, *head)


def _first(model: Any, argument: str, output: str) -> Any:
    """Returns a module of one positional input and the named tensor output of `model`."""
    return _wrap(model, lambda x: model(**{argument: x}), (output,))


def _wrap(model: Any, call: Callable[..., Any], outputs: tuple[str, ...]) -> Any:
    """Returns a module whose outputs are the tensors named `outputs` of what `call` returns."""
    from torch import nn  # noqa: PLC0415 - optional

    class Tensors(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def forward(self, *args: Any) -> Any:
            result = call(*args)
            found = tuple(getattr(result, name) for name in outputs)
            return found if len(found) > 1 else found[0]

    return Tensors()


# ------------------------------------------------------------------------------- drawing, exporting


def _module(recipe: Recipe) -> Any:
    import torch  # noqa: PLC0415 - optional

    from zoo import redraw  # noqa: PLC0415 - imports torch

    torch.manual_seed(_SEED)
    module = recipe.make().eval()
    redraw.weights(module, _arguments(recipe, seed=_SEED))
    return module


def _arguments(recipe: Recipe, seed: int) -> tuple[Any, ...]:
    import torch  # noqa: PLC0415 - optional

    rng = np.random.default_rng(seed)
    arguments = []
    for spec in recipe.inputs:
        sizes = recipe.dims or {}
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)
        arguments.append(torch.from_numpy(spec.draw(rng, shape)))
    return tuple(arguments)


def _export(recipe: Recipe, path: Path) -> None:
    import torch  # noqa: PLC0415 - optional

    dynamic = None
    if recipe.dims:
        symbols = {name: torch.export.Dim(name, min=1, max=recipe.largest) for name in recipe.dims}
        dynamic = (
            tuple(
                {axis: symbols[dim] for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
                for spec in recipe.inputs
            ),
        )
    module = _module(recipe)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it lists optional libraries it misses
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            module,
            _arguments(recipe, seed=_SEED),
            input_names=[spec.name for spec in recipe.inputs],
            output_names=list(recipe.outputs),
            opset_version=_OPSET,
            dynamic_shapes=dynamic,
            dynamo=True,
            verbose=False,
        )
    program.save(path, external_data=False)
