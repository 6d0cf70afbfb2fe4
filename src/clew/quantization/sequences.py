"""Calls of models with growing states, such as language models: inputs that calibration data may
omit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clew.build.inputs import inputs_of, outputs_of
from clew.ir.module import Module
from clew.runtime.drawing import sizes_of
from clew.runtime.first_values import repeated
from clew.runtime.state import first_value, growing_names, pairs_of

_TOKENS: Final = 64
DRAWN_CALLS: Final = 8
"""The number of calls with random tokens. Few, because the logits of all calls are held."""


class Sequences:
    """The growing states of a module, which are empty in a call that omits them, and its input of
    token ids, if it has one.
    """

    def __init__(self, module: Module) -> None:
        self._inputs = inputs_of(module)
        outputs = outputs_of(module)
        pairs = pairs_of(self._inputs, outputs)
        self._growing = growing_names(pairs)
        self._states = [pair.input for pair in pairs] if self._growing else []
        names = {spec.name for spec in self._states}
        own = [i for i in self._inputs if i.initial is not None and i.name not in names]
        self._omitted = [*self._states, *own]
        left = [i for i in self._inputs if i not in self._omitted]
        self._ids, self._vocabulary = "", 0
        if len(left) == 1 and left[0].dtype is not None and left[0].dtype.kind in "iu":
            sizes = {o.shape[-1] for o in outputs if o.shape is not None and len(o.shape) == 3}
            known = [size for size in sizes if isinstance(size, int)]
            if self._states and len(left[0].shape) == 2 and len(known) == 1:
                self._ids, self._vocabulary = left[0].name, known[0]

    @property
    def ids(self) -> str:
        """The name of the input of token ids, or ""."""
        return self._ids

    @property
    def has_ids(self) -> bool:
        """Whether the module reads token ids and returns logits of a vocabulary."""
        return bool(self._ids)

    def completed(self, given: Any) -> Any:
        """Returns the inputs of a call, with empty states and the defaults of other inputs for
        those that it omits. A single array holds token ids.
        """
        if isinstance(given, np.ndarray) and self._ids:
            given = {self._ids: given}
        if not isinstance(given, Mapping):
            return given
        missing = [spec for spec in self._omitted if spec.name not in given]
        arrays = {name: np.asarray(value) for name, value in given.items()}
        sizes = sizes_of(self._inputs, arrays)
        first = {
            spec.name: repeated(spec, sizes)
            if spec.initial is not None
            else first_value(spec, sizes, self._growing)
            for spec in missing
        }
        return {**given, **first}

    def drawn(self, seed: int) -> dict[str, Any]:
        """Returns random token ids for a call."""
        ids = np.random.default_rng(seed).integers(0, self._vocabulary, (1, _TOKENS))
        dtype = next(i.dtype for i in self._inputs if i.name == self._ids)
        assert dtype is not None
        return {self._ids: ids.astype(dtype)}
