"""Text."""

from __future__ import annotations

from clew.frontends.building import call
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter


@converter("SKIP_GRAM")
def skip_gram(layer: TfliteLayer) -> Result:
    """The sequences of words of a text, perhaps with gaps."""
    return call(
        "text.skip_grams",
        layer.input(0),
        size=layer.integer("ngram_size", 0),
        most_skipped=layer.integer("max_skip_size", 0),
        shorter=layer.flag("include_all_ngrams", False),
    )
