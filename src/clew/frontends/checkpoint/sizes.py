"""The free dimensions of a decoder: batch, tokens of a call, tokens in the cache, and tokens of a
call without logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from clew.frontends.checkpoint.architectures import Block, Decoder
from clew.frontends.names import display
from clew.ir.dims import Dim, SymDim
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.near import did_you_mean

TOKENS: Final = "input_ids"
PAST: Final = "past_key_values.{}.{}"
PRESENT: Final = "present.{}.{}"
PADDING: Final = "padding"
"""The input with the number of padding positions before each sequence."""
UNSCORED: Final = "unscored"
"""The input whose size is the number of first tokens of a call that need no logits."""
_LEAST: Final = {"batch": 1, "seq": 1, "past": 0}
_FIELDS: Final = {"batch": "batch", "seq": "rows", "past": "past"}


@dataclass(frozen=True)
class Sizes:
    """The dimensions of a decoder's inputs. `unscored` is 0 if the tokens of a call are fixed."""

    batch: Dim
    rows: Dim
    past: Dim
    unscored: Dim

    @staticmethod
    def given(decoder: Decoder, shapes: Mapping[str, Sequence[int | str]]) -> Sizes:
        """Returns the dimensions after `shapes` overrides those of inputs, by numbers or names.

        Errors: I004 for an unknown input, or a shape that it cannot have.
        """
        forms: dict[str, tuple[int | str, ...]] = {TOKENS: ("batch", "seq")}
        for n, block in enumerate(decoder.blocks):
            forms |= dict(
                zip(cache_names(n, block, PAST), cache_forms(decoder, block), strict=True)
            )
        found = {"past": 0, **{_FIELDS[n]: d for n, d in given_sizes(forms, shapes).items()}}
        free = isinstance(found["rows"], SymDim)
        return Sizes(**found, unscored=SymDim.symbol(UNSCORED, 0) if free else 0)


def given_sizes(
    forms: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Sequence[int | str]]
) -> dict[str, Dim]:
    """Returns the dimensions that `forms`, the shapes of inputs, name. `shapes` overrides those of
    some inputs by numbers or other names.

    Errors: I004 for an unknown input, or a shape that it cannot have.
    """
    found: dict[str, Dim] = {}
    for name, shape in shapes.items():
        if name not in forms:
            hint = did_you_mean(display(name), list(forms), "model's inputs")
            raise InputError("I004", f"the model has no input {display(name)!r}", hint=hint)
        if len(shape) != len(forms[name]):
            raise _wrong(name, shape, forms[name])
        for size, form in zip(shape, forms[name], strict=True):
            dim = _dim(size, form)
            if dim is None or (isinstance(form, str) and found.setdefault(form, dim) != dim):
                raise _wrong(name, shape, forms[name])
    named = dict.fromkeys(size for form in forms.values() for size in form if size in _LEAST)
    return {name: found.get(name, SymDim.symbol(name, _LEAST[name])) for name in named}


def cache_names(number: int, block: Block, pattern: str) -> tuple[str, str]:
    """Returns the names of the two states of a layer."""
    first, second = ("key", "value") if block.space is None else ("convolution", "recurrence")
    return pattern.format(number, first), pattern.format(number, second)


def cache_forms(decoder: Decoder, block: Block) -> tuple[tuple[int | str, ...], ...]:
    """Returns the shapes of the two states of a layer. Free sizes are names."""
    if block.space is None:
        return (("batch", decoder.groups, "past", decoder.head_size),) * 2
    of = block.space
    return ("batch", of.taps - 1, of.channels), ("batch", of.heads, of.head_size, of.size)


def _dim(size: int | str, form: int | str) -> Dim | None:
    """Returns the dimension of a given size; None if the size is not allowed."""
    if isinstance(form, int):
        return form if size == form else None
    if isinstance(size, str):
        return SymDim.symbol(size, _LEAST[form])
    return size if size >= _LEAST[form] else None


def _wrong(name: str, shape: Sequence[int | str], form: Sequence[int | str]) -> InputError:
    return InputError(
        "I004",
        f"the input {name!r} is [{', '.join(map(str, form))}], not {list(shape)!r:.80}",
        hint="give the same numbers, or names, for equal sizes",
    )
