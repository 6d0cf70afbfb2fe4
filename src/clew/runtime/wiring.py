"""The roles of the inputs and outputs of a language model, inferred from the names in exports."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.runtime.input_spec import InputSpec
from clew.runtime.state import branch_input
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.near import listed
from clew.support.shown import Shown

Array: TypeAlias = "np.ndarray[Any, Any]"
_TOKENS: Final = ("input_ids", "tokens", "ids")
_LOGITS: Final = ("logits", "lm_logits", "scores")
_AT_ONCE: Final = 512
"""Tokens of a prompt in one call: all intermediate values exist for each of them."""
_FILLED: Final = (
    "attention_mask",
    "position_ids",
    "cache_position",
    "use_cache_branch",
    "num_logits_to_keep",
    "total_sequence_length",
)
"""Inputs besides tokens and caches that have one possible value."""
_PADDING: Final = "padding"
_UNSCORED: Final = "unscored"
_WITH_DEFAULT: Final = (_PADDING, _UNSCORED)
"""Inputs of clew's own graphs: the number of padding positions before each sequence, and, as a
size, the number of first tokens of a call that need no logits.
"""


@dataclass(frozen=True)
class Growing:
    """A state with an element per token along axis `axis`, and one per sequence along axis `batch`;
    -1 for an absent axis. States without `axis` have a fixed size.
    """

    name: str
    axis: int
    batch: int


class Wiring(Shown):
    """The roles of a model's inputs and outputs.

    Errors: I484 if it is no language model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        specs = {i.name: i for i in model.inputs}
        self.tokens = _found(_TOKENS, specs, "an input of token ids", _takes_ids)
        logits = {o.name: o for o in model.outputs}
        self.logits = _found(_LOGITS, logits, "an output of logits", _gives_logits)
        vocabulary = logits[self.logits].shape[-1] if logits[self.logits].shape else None
        self.vocabulary = vocabulary if isinstance(vocabulary, int) else None
        batch, new = specs[self.tokens].shape
        self.at_once = new if isinstance(new, int) else _AT_ONCE
        self._is_merged = branch_input(model.inputs) is not None
        self.batch = batch if isinstance(batch, int) else None
        self.states = _states(model, batch)
        known = {state.name for state in self.states}
        own = {n for n in _WITH_DEFAULT if n in specs and specs[n].initial is not None}
        self.filled = [specs[n] for n in specs if n in {*_FILLED, *own} and n not in known]
        left = [n for n in specs if n not in {self.tokens, *_FILLED, *own, *known}]
        if left:
            raise _not_a_language_model(
                f"it has inputs besides tokens and caches: {listed(left)}",
                "session = model.session(...) runs it step by step with all of its inputs",
            )
        self.dtype = specs[self.tokens].dtype
        grows = any(state.axis >= 0 for state in self.states)
        has_rows = bool(self.states) and all(state.batch >= 0 for state in self.states)
        self.batches = self.batch is None and (has_rows or not self.states)
        """Whether several sequences can be read at once."""
        self.mixes_lengths = (
            self.batches
            and has_rows
            and (_PADDING in own if grows else {i.name for i in self.filled} <= {_UNSCORED})
        )
        """Whether sequences that are read at once may have different lengths."""

    @property
    def rewinds(self) -> bool:
        """Whether the states can be cut to fewer tokens."""
        return all(state.axis >= 0 for state in self.states)

    @property
    def verifies(self) -> bool:
        """Whether the model can read guessed tokens in one call and discard wrong ones."""
        return self.rewinds and self.at_once > 1 and not self._is_merged

    def most(self, past: int) -> int:
        """Returns the largest number of tokens that a call may read after `past` tokens. The branch
        of a merged decoder that continues the caches may have been exported for one token.
        """
        if self._is_merged:
            return 1 if past else sys.maxsize
        return self.at_once

    def check_ids(self, ids: Any) -> None:
        """Errors: I481 for token ids out of range."""
        array, most = np.asarray(ids), self.vocabulary
        outside = array[(array < 0) | (array >= most)] if most is not None else array[array < 0]
        if outside.size:
            raise InputError(
                "I481",
                f"the token id {int(outside[0])} is out of range",
                hint=f"the model's ids are 0 to {most - 1}" if most else "ids are 0 or more",
            )

    def inputs(
        self, ids: Array, past: int, padding: Sequence[int], unscored: int
    ) -> dict[str, Array]:
        """Returns the inputs of a call without the states. `ids`: i64[batch, new], after `past`
        positions, of which the first `padding` ones of each sequence hold no token. The caller does
        not need the logits of the first `unscored` tokens.
        """
        given = {self.tokens: ids.astype(self.dtype)}
        for spec in self.filled:
            if spec.name == _PADDING:
                given[spec.name] = np.array(padding, spec.dtype)
            elif spec.name == _UNSCORED:
                given[spec.name] = np.zeros(unscored, spec.dtype)
            else:
                given[spec.name] = _value(spec, ids.shape, past)
        return given


def decode_step(model: Any, length: int) -> dict[str, Array] | None:
    """Returns inputs of zeros for a step of one token after `length` tokens. None if the model is
    no language model whose caches grow, or has states of sizes that names do not determine.
    """
    try:
        wiring = Wiring(model)
    except InputError:
        return None
    if not any(state.axis >= 0 for state in wiring.states):
        return None
    specs = {spec.name: spec for spec in model.inputs}
    given = wiring.inputs(np.zeros((1, 1), np.int64), length, [0], 0)
    for state in wiring.states:
        sizes = {state.batch: 1, state.axis: length}
        shape = [sizes.get(n, size) for n, size in enumerate(specs[state.name].shape)]
        if not all(isinstance(size, int) for size in shape):
            return None
        given[state.name] = np.zeros(shape, specs[state.name].dtype)
    return given if given.keys() == specs.keys() else None


def _value(spec: InputSpec, shape: Sequence[int], past: int) -> Array:
    batch, new = shape
    places = np.arange(past, past + new)
    values = {
        "attention_mask": np.ones((batch, past + new)),
        "position_ids": np.broadcast_to(places, (batch, new)),
        "cache_position": places,
        "use_cache_branch": np.array([past > 0]),
        "num_logits_to_keep": np.array(0),
        "total_sequence_length": np.array(past + new),
    }
    value = values[spec.name]
    if math.prod(value.shape) == 1:
        value = value.reshape((1,) * len(spec.shape))
    return np.array(value, spec.dtype, order="C")


def _states(model: Any, batch: int | str) -> list[Growing]:
    """Returns the states of a model; none if they cannot be inferred from names."""
    try:
        session = model.session()
    except InputError:
        return []
    specs, axes, found = {i.name: i for i in model.inputs}, session.growing_axes, []
    for name in session.state_names:
        shape = specs[name].shape
        own = [n for n, size in enumerate(shape) if size == batch and isinstance(size, str)]
        found.append(Growing(name, axes.get(name, -1), own[0] if own else -1))
    return found


def _takes_ids(spec: Any) -> bool:
    kind = spec.dtype.kind if spec.dtype is not None else ""
    return len(spec.shape) == 2 and kind in "iu"


def _gives_logits(spec: Any) -> bool:
    if not spec.is_known:
        return True
    return spec.dtype is not None and spec.shape is not None and len(spec.shape) == 3


def _found(names: Sequence[str], specs: Any, what: str, fits: Any) -> str:
    for name in names:
        if name in specs and fits(specs[name]):
            return name
    raise _not_a_language_model(
        f"it has no {what.partition(' ')[2]}; it has {listed(specs)}",
        f"{what} is named {' or '.join(names)}, as in models that Optimum exports",
    )


def _not_a_language_model(why: str, hint: str) -> InputError:
    return InputError("I484", f"the model cannot generate text: {why}", hint=hint)
