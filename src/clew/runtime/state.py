"""The state of a model: the inputs that outputs of the previous call feed, and their first values.

Without names from the user, the pairs come from the naming conventions of exporters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.runtime.first_values import repeated
from clew.runtime.input_spec import InputSpec
from clew.runtime.output_spec import OutputSpec
from clew.runtime.variant import Variant
from clew.support.budgets import check_run_bytes
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.near import did_you_mean, listed
from clew.support.text_arrays import zeros

Array: TypeAlias = "np.ndarray[Any, Any]"

# Names of a state input and of the output that feeds it; `*` is the same text in both, and upper
# and lower case are equal.
CONVENTIONS: Final = (
    ("past", "present"),
    ("past*", "present*"),
    ("past_key_values*", "present*"),
    ("*in", "*out"),  # state_in, state_out
    ("in_*", "out_*"),
    ("*0", "*n"),  # h0 and hn, h_0 and h_n
    ("*", "*n"),  # h and hn, state and stateN
    ("*", "*_n"),
    ("initial_*", "final_*"),
    ("initial_*", "Y_*"),  # ONNX's recurrent operators
    ("prev_*", "next_*"),
    ("prev_*", "new_*"),
    ("prev_*", "*"),
    ("*_prev", "*_next"),
    ("*_prev", "*"),
    ("*", "next_*"),
    ("*", "*_next"),
    ("*", "new_*"),
    ("*", "*_new"),
    ("*", "updated_*"),
)

BRANCH: Final = "use_cache_branch"
"""The input that selects one of the two branches of a merged decoder, as Optimum names it."""


@dataclass(frozen=True)
class StatePair:
    """A state input and the output that feeds it on the next call."""

    input: InputSpec
    output: OutputSpec


def given_pairs(
    inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], state: Mapping[str, str]
) -> list[StatePair]:
    """Returns the pairs that a user names: for each state input, the output that feeds it.

    Errors: I371 for names that the model does not have, I372 for types that contradict each other.
    """
    if not isinstance(state, Mapping):
        raise InputError(
            "I371",
            f"state is a {type(state).__name__}, expected a mapping",
            hint="state={input: output} names, for each state input, the output that feeds it",
        )
    takes, gives = {i.name: i for i in inputs}, {o.name: o for o in outputs}
    reverse = all(k in gives and v in takes for k, v in state.items())
    turned = {output: given for given, output in state.items()} if reverse else {}
    for kind, names, known in (("input", state, takes), ("output", state.values(), gives)):
        for name in names:
            if name in known:
                continue
            hint = f"state maps inputs to outputs: state={turned}"
            raise InputError(
                "I371",
                f"state names the {kind} {name!r}, which the model does not have",
                hint=hint if turned else did_you_mean(str(name), known, f"model's {kind}s"),
            )
    pairs = [StatePair(takes[i], gives[o]) for i, o in state.items()]
    for pair in pairs:
        if not _fits(pair.output, pair.input):
            raise InputError(
                "I372",
                f"output {pair.output.name!r} ({pair.output.shown_type}) cannot be the next value "
                f"of input {pair.input.name!r} ({pair.input.shown_type})",
                hint="state={input: output} needs tensors of the same dtype and shape",
            )
    return pairs


def conventional_pairs(
    inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
) -> list[StatePair]:
    """Returns the pairs whose names follow a convention and whose types agree.

    Errors: I370 if there are none, or several for an input or output.
    """
    takes, gives = {i.name: i for i in inputs}, {o.name: o for o in outputs}
    found: dict[tuple[str, str], None] = {}
    for before, after in CONVENTIONS:
        stems: dict[str, list[str]] = {}
        for name in takes:
            stems.setdefault(_stem(before, name) or "", []).append(name)
        for name in gives:
            stem = _stem(after, name)
            for other in stems.get(stem, ()) if stem else ():
                if _fits(gives[name], takes[other]):
                    found[other, name] = None
    uses = Counter(f"input {i}" for i, _ in found) + Counter(f"output {o}" for _, o in found)
    twice = [(i, o) for i, o in found if uses[f"input {i}"] > 1 or uses[f"output {o}"] > 1]
    if found and not twice:
        order = {name: n for n, name in enumerate(takes)}
        chosen = sorted(found, key=lambda e: order[e[0]])
        return [StatePair(takes[i], gives[o]) for i, o in chosen]
    hint = _candidates(inputs, outputs)
    if not twice:
        raise InputError("I370", "the model names no state that clew recognizes", hint=hint)
    several = listed(f"{i} <- {o}" for i, o in twice)
    raise InputError("I370", f"the model's names allow several states: {several}", hint=hint)


def _stem(pattern: str, name: str) -> str | None:
    """Returns the text that `*` stands for if a name matches a pattern; "*" if the pattern has no
    `*`.
    """
    pattern, name = pattern.casefold(), name.casefold()
    if "*" not in pattern:
        return "*" if name == pattern else None
    head, tail = pattern.split("*")
    matched = re.fullmatch(f"{re.escape(head)}(.+){re.escape(tail)}", name, re.DOTALL)
    return matched[1] if matched else None


def _candidates(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> str:
    """Returns a hint that lists, for each input, the outputs whose types agree."""
    rows = []
    for given in inputs:
        names = [o.name for o in outputs if o.is_known and _fits(o, given)]
        if names:
            rows.append(f"{given.name} <- {' or '.join(names)}")
    if not rows:
        return "name the state: state={input: output}; no output has the type of an input"
    return f"name the state: state={{input: output}}; types allow {listed(rows)}"


def _fits(output: OutputSpec, given: InputSpec) -> bool:
    """Whether the values of an output may be tensors that an input accepts."""
    tensor = _tensor(given)
    if tensor is None:
        return False
    if not output.is_known:
        return True
    dtype, shape = tensor
    if output.dtype != dtype or output.dtype is None:
        return False
    if shape is None or output.shape is None:
        return True
    return len(shape) == len(output.shape) and all(
        not isinstance(a, int) or not isinstance(b, int) or a == b
        for a, b in zip(output.shape, shape, strict=True)
    )


def _tensor(given: InputSpec) -> tuple[Any, Sequence[int | str | None] | None] | None:
    """Returns the dtype of a tensor input and its shape, which is None if the rank is unknown;
    None for other inputs.
    """
    if given.dtype is not None:
        return given.dtype, None if given.takes_any_shape else given.shape
    if given.kind is not None and given.kind.name == "tensor":
        return given.kind.dtype, given.kind.shape
    return None


def growing_names(pairs: Sequence[StatePair]) -> frozenset[str]:
    """Returns the named sizes that calls enlarge: `past` if a state of size `past` is followed by
    one of size `past + new`, or `max(past, total)`.
    """
    found = set()
    for pair in pairs:
        after = pair.output.shape
        if after is None or len(after) != len(pair.input.shape):
            continue
        for size, later in zip(pair.input.shape, after, strict=True):
            if isinstance(size, str) and isinstance(later, str) and _extends(size, later):
                found.add(size)
    return frozenset(found)


def pairs_of(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> list[StatePair]:
    """Returns the states that the model itself has, else those that names identify; none if they do
    not.
    """
    own = {i.name: i.fed_by for i in inputs if i.fed_by}
    try:
        return given_pairs(inputs, outputs, own) if own else conventional_pairs(inputs, outputs)
    except InputError:
        return []


def pair_names(pairs: Sequence[StatePair]) -> tuple[tuple[str, str], ...]:
    """Returns the names of state inputs and of the outputs that feed them."""
    return tuple((pair.input.name, pair.output.name) for pair in pairs)


def branch_input(inputs: Sequence[InputSpec]) -> str | None:
    """Returns the name of the input that selects a branch of a merged decoder: false in a call that
    begins a sequence, true in a call that continues its states. None if there is no such input.
    """
    found = [i for i in inputs if i.name == BRANCH and i.dtype == np.bool_]
    return found[0].name if found else None


def held_variants(inputs: Sequence[InputSpec], pairs: Sequence[StatePair]) -> list[Variant]:
    """Returns the variants that sessions of a model run, with states in buffers: one for all calls
    or, for a merged decoder, one for calls that begin a sequence and one for calls that continue
    it, in this order. None without states.
    """
    names, flag = pair_names(pairs), branch_input(inputs)
    if not pairs:
        return []
    if flag is None:
        return [Variant(held=names)]
    return [Variant(held=names, branch=(flag, value)) for value in (False, True)]


def _extends(size: str, later: str) -> bool:
    """Whether a size is the sum of another and more, or the larger one of it and another."""
    terms = later.split(" + ")
    if later.startswith("max(") and later.endswith(")"):
        return size in later[4:-1].split(", ")
    return len(terms) > 1 and size in terms and " - " not in later


def first_value(given: InputSpec, sizes: Mapping[str, int], growing: Collection[str]) -> Array:
    """Returns the first value of a state input: its own one, repeated, or zeros. Named sizes are
    those in `sizes`; otherwise a growing axis has no elements.

    Errors: I265 (bytes), I373 if a size is unknown.
    """
    known = {**dict.fromkeys(growing, 0), **sizes}
    found = _tensor(given)
    assert found is not None, "a state that is not a tensor"
    dtype, declared = found
    if declared is None:
        raise _unknown(given, "the rank is not known", "")
    shape = [known.get(d, d) if isinstance(d, str) else d for d in declared]
    unknown = [str(d or "an axis") for d in shape if not isinstance(d, int)]
    if unknown:
        numbers = ", ".join(str(d) if isinstance(d, int) else "1" for d in shape)
        example = f"numpy.zeros(({numbers}{',' * (len(shape) == 1)}), {str(dtype)!r})"
        have = "have" if len(unknown) > 1 else "has"
        raise _unknown(given, f"{' and '.join(unknown)} {have} no size", example)
    sizes_ = [int(d) for d in shape if d is not None]
    check_run_bytes(f"state {given.name!r}", math.prod(sizes_) * dtype.itemsize)
    return zeros(sizes_, dtype) if given.initial is None else repeated(given, known)


def _unknown(given: InputSpec, why: str, example: str) -> InputError:
    return InputError(
        "I373",
        f"the initial value of state {given.name!r} ({given.shown_type}) is unknown: {why}",
        hint=f"pass initial={{{given.name!r}: {example or '...'}}}",
    )
