"""Operators on strings."""

from __future__ import annotations

from clew.frontends.building import call, fields
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter


@converter("StringConcat")
def string_concat(layer: Layer) -> Result:
    """Strings joined, element by element."""
    return call("text.concat", layer.input(0), layer.input(1))


@converter("StringSplit")
def string_split(layer: Layer) -> Result:
    """Substrings, and their number."""
    splits = layer.integer("maxsplit", -1)
    result = call(
        "text.split", layer.input(0), delimiter=layer.text("delimiter"), max_splits=splits
    )
    return fields(result, 2)


@converter("StringNormalizer")
def string_normalizer(layer: Layer) -> Result:
    """Strings without stop words, with changed case."""
    return call(
        "text.normalize",
        layer.input(0),
        stopwords=layer.texts("stopwords"),
        case=layer.text("case_change_action", "NONE"),
        case_sensitive=layer.flag("is_case_sensitive"),
        locale=layer.text("locale"),
    )


@converter("RegexFullMatch")
def regex_full_match(layer: Layer) -> Result:
    """Whether strings match a pattern."""
    return call("text.full_match", layer.input(0), pattern=layer.text("pattern"))
