"""Cuts a file: the layers between given values, with the parameters that they need.

A format numbers the layers of its file in an order with definitions before uses, says which values
each of them uses and defines, and writes some of them to a file of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.ir.module import Module
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CutLayer:
    """A layer of a file: its name in the import, the names of values that it uses, in order, and of
    those that it defines. `random` says that its values differ from run to run.
    """

    name: str
    uses: tuple[str, ...]
    defines: tuple[str, ...]
    random: bool = False


class Cutter(ABC):
    """A file to cut. `module` is the file as it was imported, `parameters` are the names of the
    values stored in it, and `inside` maps the name of a layer in a branch, loop or function to that
    of the layer it is part of.
    """

    def __init__(
        self,
        module: Module,
        layers: Sequence[CutLayer],
        parameters: Collection[str],
        output_names: Sequence[str],
        inside: Mapping[str, str] | None = None,
    ) -> None:
        self.module: Final = module
        self.layers: Final = tuple(layers)
        self.output_names: Final = list(output_names)
        self.inside: Final = dict(inside or {})
        self._parameters = frozenset(parameters)
        self._uses = [frozenset(layer.uses) for layer in layers]
        self._producer = {o: n for n, layer in enumerate(layers) for o in layer.defines}

    @abstractmethod
    def giving(self, names: Sequence[str]) -> Module:
        """Returns the whole model as a module with these values, in this order, as its outputs."""

    @abstractmethod
    def write(
        self,
        path: Path,
        numbers: Collection[int],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        notes: Mapping[str, str] | None = None,
    ) -> list[Path]:
        """Writes layers as a model with these inputs and outputs, and returns the files. The arrays
        determine their types. Raises `OSError`.
        """

    def is_settled(self, name: str) -> bool:
        """Whether a value is known without a run, so that parts hold it."""
        return False

    @property
    def names(self) -> list[str]:
        """The layers' names."""
        return [layer.name for layer in self.layers]

    @property
    def reads(self) -> list[frozenset[int]]:
        """For each layer, the layers whose values it uses."""
        return [
            frozenset(self._producer[u] for u in uses if u in self._producer) for uses in self._uses
        ]

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The layers whose values depend only on parameters."""
        constant = set(self._parameters)
        found: set[int] = set()
        for number, layer in enumerate(self.layers):
            if not layer.random and self._uses[number] <= constant:
                found.add(number)
                constant.update(layer.defines)
        return frozenset(found)

    def outputs_of(self, numbers: Iterable[int]) -> list[str]:
        """Returns the values that layers define and others use; for a layer without such values,
        its first.
        """
        used = self.used_by(range(len(self.layers))) | set(self.output_names)
        found: list[str] = []
        for number in sorted(numbers):
            own = self.layers[number].defines
            found += [o for o in own if o in used] or own[:1]
        return found

    def used_by(self, numbers: Iterable[int]) -> set[str]:
        """Returns the values that layers use."""
        return {use for number in numbers for use in self._uses[number]}

    def boundary(
        self, numbers: Collection[int], ends: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Returns the outside values that layers use, except known ones and parameters; and the
        values of theirs that are used outside (or are among `ends`), in order.
        """
        own = set(numbers) - self.fixed
        made = {o for n in own for o in self.layers[n].defines}
        constant = self._parameters.union(*(self.layers[n].defines for n in self.fixed))
        inputs: dict[str, None] = {}
        outputs: list[str] = []
        wanted = self.used_by(set(range(len(self.layers))) - own)
        wanted |= set(self.output_names) | set(ends)
        for number in sorted(own):
            layer = self.layers[number]
            outside = (u for u in layer.uses if u not in made and u not in constant)
            inputs.update(dict.fromkeys(u for u in outside if not self.is_settled(u)))
            outputs += [o for o in layer.defines if o in wanted]
        return list(inputs), outputs

    def with_fixed(self, numbers: Collection[int]) -> set[int]:
        """Returns layers together with the fixed layers that they use."""
        found = set(numbers)
        pending = sorted(found)
        while pending:
            for use in self._uses[pending.pop()]:
                producer = self._producer.get(use)
                if producer in self.fixed and producer not in found:
                    found.add(producer)
                    pending.append(producer)
        return found
