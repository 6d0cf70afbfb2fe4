"""Random values for inputs that are not given, from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew.ir.dim_places import size_places
from clew.ir.dims import value_at
from clew.runtime.first_values import is_row, repeated
from clew.support.calling import by_name
from clew.support.errors import Hint, InputError
from clew.support.text_arrays import TEXT

if TYPE_CHECKING:
    from clew.runtime.input_spec import InputSpec
    from clew.runtime.kinds import Kind

Array = np.ndarray[Any, Any]


def complete(
    inputs: Sequence[InputSpec],
    given: Mapping[str, Any],
    seed: int = 0,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    last: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns all inputs by name in order: the given ones, checked, the first values of
    states, and random values for the others.

    Named sizes come from the given inputs, else from `shapes` (by input), else from `last`: the
    shapes of the last run by input, and the values of inputs that decide sizes; else from the
    inputs' usual shapes.

    Errors: I041 to I043 for given inputs, I061 for sizes that remain unknown, I303 for `shapes`
    that do not fit.
    """
    specs = {i.name: i for i in inputs}
    by_name(list(specs), given, partial=True)
    wanted = {n: tuple(map(int, s)) for n, s in (shapes or {}).items()}
    by_name(list(specs), wanted, partial=True)
    last = last or {}
    rows = [i.name for i in inputs if is_row(i)]
    checked = {i.name: i.initial for i in inputs if i.initial is not None and i.name not in rows}
    checked |= {name: specs[name].check(value) for name, value in given.items()}
    for name, value in last.items():
        if specs[name].decides and name not in given and not isinstance(value, tuple):
            checked[name] = value
    for name, shape in wanted.items():
        if not specs[name].takes(shape):
            raise InputError(
                "I303",
                f"shapes gives input {name!r} the shape {list(shape)}, the model expects "
                f"{specs[name].shown_shape}",
                hint="numbers must match, only named sizes vary",
            )
    before = {n: v if isinstance(v, tuple) else np.shape(v) for n, v in last.items()}
    sizes = _named_sizes(inputs, {i.name: i.usual for i in inputs if i.usual is not None})
    sizes |= _named_sizes(inputs, before)
    sizes |= _named_sizes(inputs, wanted)
    sizes |= sizes_of(inputs, checked)
    checked |= {n: repeated(specs[n], sizes) for n in rows if n not in checked}
    known = {**before, **wanted}
    rng = np.random.default_rng(seed)
    return {
        i.name: checked[i.name] if i.name in checked else _draw_one(i, rng, sizes, known, inputs)
        for i in inputs
    }


def _named_sizes(
    inputs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Returns the named sizes that shapes determine."""
    sizes: dict[str, int] = {}
    for wanted in inputs:
        shape = shapes.get(wanted.name)
        if shape is not None and len(shape) == len(wanted.shape):
            pairs = zip(wanted.shape, shape, strict=True)
            sizes.update({d: n for d, n in pairs if isinstance(d, str) and d != "..."})
    dims = [spec.dims if spec.name in shapes else () for spec in inputs]
    for place in size_places(dims):
        sizes.setdefault(place.name, place.size(shapes[inputs[place.argument].name][place.axis]))
    return sizes


def draw(
    inputs: Sequence[InputSpec],
    given: Mapping[str, Array],
    seed: int,
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    """Returns random values from a seed for the inputs that are not given.

    Floats are from the standard normal distribution, integers are 0 or 1 (valid masks, and ids of
    any vocabulary). `sizes` holds the named sizes that given inputs determine.

    Errors: I061 for an input whose named sizes remain unknown.
    """
    rng = np.random.default_rng(seed)
    return {i.name: _draw_one(i, rng, sizes, None, inputs) for i in inputs if i.name not in given}


def sizes_of(inputs: Sequence[InputSpec], given: Mapping[str, Any]) -> dict[str, int]:
    """Returns the named sizes that given arrays determine."""
    return _named_sizes(inputs, {n: v.shape for n, v in given.items() if hasattr(v, "shape")})


def settled(
    wanted: InputSpec,
    sizes: Mapping[str, int],
    known: Mapping[str, Sequence[int]] | None = None,
    others: Sequence[InputSpec] = (),
) -> list[int]:
    """Returns the shape of an input with its named sizes replaced by numbers. `others` are the
    inputs that are drawn, too.

    Errors: I061 if one is unknown, and for an input whose value decides sizes, which cannot be
    guessed.
    """
    if wanted.decides:
        raise InputError(
            "I061",
            f"the value of input {wanted.name!r} decides sizes or axes, so it cannot be random",
            hint=Hint(
                f"give input {wanted.name!r} an array",
                cli=f"give it, as in --input {wanted.name}=value.npy",
                page="clew profile MODEL --input NAME=FILE.npy takes a value for it",
            ),
        )
    if wanted.takes_any_shape and wanted.name in (known or {}):
        return list((known or {})[wanted.name])
    shape = _shape(wanted, sizes)
    if any(isinstance(d, str) for d in shape):
        raise _open_error(wanted, shape, sizes, others)
    return [int(d) for d in shape]


def _shape(wanted: InputSpec, sizes: Mapping[str, int]) -> list[int | str]:
    """Returns the shape of an input, with names for the sizes that are unknown."""
    shape = [sizes.get(d, d) if isinstance(d, str) else d for d in wanted.shape]
    for axis, dim in wanted.expressions.items():
        if dim.symbols.issubset(sizes):
            shape[axis] = value_at(dim, sizes)
    return shape


def _open_error(
    wanted: InputSpec,
    shape: Sequence[int | str],
    sizes: Mapping[str, int],
    others: Sequence[InputSpec],
) -> InputError:
    """Returns the error for an input of unknown sizes. Its hint has shapes for it and for those of
    the `others` that are needed, too, to know all sizes.
    """
    open_sizes = [d for d in shape if isinstance(d, str)]
    examples = {wanted.name: [1 if isinstance(d, str) else d for d in shape]}
    known = {**sizes, **dict.fromkeys(open_sizes, 1)}
    for other in others:
        more = [] if other.decides else _shape(other, known)
        if any(isinstance(d, str) for d in more):
            examples[other.name] = [1 if isinstance(d, str) else d for d in more]
            known |= {d: 1 for d in more if isinstance(d, str)}
    flags = [f"{name}={','.join(map(str, example))}" for name, example in examples.items()]
    one = len(examples) == 1
    return InputError(
        "I061",
        f"input {wanted.name!r} has the shape [{', '.join(map(str, wanted.shape))}], and "
        f"{' and '.join(open_sizes)} {'have' if len(open_sizes) > 1 else 'has'} no size",
        hint=Hint(
            f"give {f'input {wanted.name!r} an array' if one else 'arrays'}, or fix "
            f"{'its shape' if one else 'shapes'}: inputs={examples} of clew.load or clew.compile",
            cli=f"give {'it' if one else 'shapes'}, as in --shape {' --shape '.join(flags)}",
            page=f"compile it with the input shapes {' '.join(flags).replace(',', 'x')}",
        ),
    )


def _draw_one(
    wanted: InputSpec,
    rng: np.random.Generator,
    sizes: Mapping[str, int],
    known: Mapping[str, Sequence[int]] | None,
    inputs: Sequence[InputSpec],
) -> Any:
    if wanted.kind is not None:
        return _draw_value(wanted.kind, rng, f"input {wanted.name!r} is {wanted.kind}")
    if wanted.dtype is None:
        raise InputError("I061", f"input {wanted.name!r} is not a tensor, so it cannot be random")
    return _draw_array(wanted.dtype, settled(wanted, sizes, known, inputs), rng)


def _draw_array(dtype: Any, shape: Sequence[int], rng: np.random.Generator) -> Array:
    floating = dtype.kind in "fV"  # V: bfloat16 and similar dtypes
    drawn = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
    return np.asarray(drawn if dtype != TEXT else drawn.astype(str)).astype(dtype)


def _draw_value(kind: Kind, rng: np.random.Generator, what: str) -> Any:
    """Returns a value other than a tensor: sequences have two elements, optionals a value.

    Errors: I061 for maps, and for tensors of unknown shape.
    """
    match kind.name:
        case "sequence":
            return [_draw_value(kind.parts[0], rng, what) for _ in range(2)]
        case "optional":
            return _draw_value(kind.parts[0], rng, what)
        case "tensor" if kind.shape is not None and None not in kind.shape:
            return _draw_array(kind.dtype, [int(d or 0) for d in kind.shape], rng)
    raise InputError("I061", f"{what}, so it cannot be random", hint="give it a value")
