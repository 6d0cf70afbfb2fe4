"""Networks in serving configurations and held-out networks, made as in `zoo.exported`.

`batch`: eight inputs at once. `decode`: one token, with the keys and values of earlier tokens as
inputs. `heldout`: for figures only; no schedule or pass is tuned on them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from zoo import exported
from zoo.entries import Entry, Input, image, normal, padding_mask, tokens
from zoo.exported import Recipe

_BATCH = 8
_PAST = 127  # tokens before the one that is decoded
# Words are only looked up, or looked up and scored: a small vocabulary keeps the files small.
_VOCABULARY = 4_000


def entries() -> Iterator[Entry]:
    """Yields an entry for each workload."""
    for recipe in _recipes():
        yield Entry(
            name=recipe.name,
            groups=frozenset({"exported", "workload", *recipe.groups}),
            build=partial(exported._export, recipe),
            inputs=recipe.inputs,
            sources=(
                Path(__file__),
                *(Path(__file__).with_name(f"{name}.py") for name in ("exported", "redraw")),
            ),
        )


def torch_module(name: str) -> Any:
    """Returns the torch module behind an exported model of the zoo, a workload or another."""
    recipe = next((recipe for recipe in _recipes() if recipe.name == name), None)
    return exported.torch_module(name) if recipe is None else exported._module(recipe)


def _recipes() -> Iterator[Recipe]:
    yield from _batches()
    yield _decoder("llama_decode", _llama, 4)
    yield _decoder("gpt2_decode", _gpt2, 12)
    yield from _heldout()


# -------------------------------------------------------------------------------------------- batch


def _batches() -> Iterator[Recipe]:
    resnet50 = partial(exported._resnet, (256, 512, 1024, 2048), (3, 4, 6, 3), "bottleneck")
    yield _classifier("resnet50_batch8", resnet50, "cnn", "batch", batch=_BATCH)
    bert = partial(exported._bert, 768, 12, 12, _VOCABULARY)
    yield _encoder("bert_base_batch8", bert, "batch", batch=_BATCH)


def _classifier(name: str, make: Callable[[], Any], *groups: str, batch: int = 1) -> Recipe:
    pixels = Input("pixels", (batch, 3, 224, 224), image)
    return Recipe(name, make, (pixels,), ("logits",), ("vision", *groups))


def _encoder(name: str, make: Callable[[], Any], *groups: str, batch: int = 1) -> Recipe:
    inputs = (
        Input("input_ids", (batch, 128), tokens(_VOCABULARY)),
        Input("attention_mask", (batch, 128), padding_mask),
    )
    outputs = ("last_hidden_state", "pooler_output")[: 1 if "heldout" in groups else 2]
    return Recipe(name, make, inputs, outputs, ("language", "transformer", *groups))


# ------------------------------------------------------------------------------------------- decode


def _decoder(name: str, make: Callable[[], Any], heads: int) -> Recipe:
    """A network of 12 layers of width 768; keys and values are f32[1, heads, 127, 64]."""
    layers, shape = 12, (1, heads, _PAST, 64)
    past = [f"past.{n}.{part}" for n in range(layers) for part in ("key", "value")]
    inputs = (
        Input("input_ids", (1, 1), tokens(_VOCABULARY)),
        *(Input(each, shape, normal) for each in past),
    )
    outputs = ("logits", *(each.replace("past", "present") for each in past))
    return Recipe(name, make, inputs, outputs, ("language", "transformer", "decode"))


def _llama() -> Any:
    library = exported._transformers()
    config = library.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=768,
        intermediate_size=2_048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    return _with_past(library.LlamaForCausalLM(config))


def _gpt2() -> Any:
    library = exported._transformers()
    config = library.GPT2Config(vocab_size=_VOCABULARY, n_embd=768, n_layer=12, n_head=12)
    return _with_past(library.GPT2LMHeadModel(config))


def _with_past(model: Any) -> Any:
    """Returns a module from (ids, key, value, key, value, ...) to (logits, key, value, ...)."""
    from torch import nn  # noqa: PLC0415 - optional
    from transformers import DynamicCache  # noqa: PLC0415

    class Step(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def forward(self, ids: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            result = self.network(input_ids=ids, past_key_values=cache, use_cache=True)
            present = [t for layer in cache.layers for t in (layer.keys, layer.values)]
            return (result.logits, *present)

    return Step()


# ------------------------------------------------------------------------------------------ heldout


def _heldout() -> Iterator[Recipe]:
    yield _classifier("regnet_y_800mf", _regnet, "cnn", "heldout")
    yield _classifier("efficientnet_b0", _efficientnet, "cnn", "heldout")
    yield _classifier("deit_small", _deit, "transformer", "heldout")
    yield _encoder("distilbert", _distilbert, "heldout")


def _regnet() -> Any:
    library = exported._transformers()
    config = library.RegNetConfig(
        embedding_size=32,
        hidden_sizes=[64, 144, 320, 784],
        depths=[1, 3, 8, 2],
        groups_width=16,
        layer_type="y",
        num_labels=1_000,
    )
    model = library.RegNetForImageClassification(config)
    return exported._first(model, "pixel_values", "logits")


def _efficientnet() -> Any:
    from torch import nn  # noqa: PLC0415 - optional

    library = exported._transformers()
    config = library.EfficientNetConfig(
        width_coefficient=1.0,
        depth_coefficient=1.0,
        image_size=224,
        hidden_dim=1_280,
        num_labels=1_000,
    )
    model = library.EfficientNetForImageClassification(config)
    # The library pools with a window of 1280 pixels over 7, where all others take the mean.
    model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    return exported._first(model, "pixel_values", "logits")


def _deit() -> Any:
    library = exported._transformers()
    config = library.DeiTConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1_536,
        num_labels=1_000,
    )
    return exported._first(library.DeiTForImageClassification(config), "pixel_values", "logits")


def _distilbert() -> Any:
    library = exported._transformers()
    config = library.DistilBertConfig(vocab_size=_VOCABULARY)
    model = library.DistilBertModel(config)
    return exported._wrap(
        model,
        lambda ids, mask: model(input_ids=ids, attention_mask=mask),
        ("last_hidden_state",),
    )
