"""Sizes that are known only in a call: the tables by which the driver computes the numbers of a
frame from them.

Polynomials of sizes are instructions on registers (`runtime.size_code`). They run in stages: the
caller gives the free sizes, and each step that counts elements gives further sizes. The arena is
laid out once, for the largest sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from clew.codegen.driver import driver as native_driver
from clew.codegen.driver import sizes as native
from clew.ir.dims import Dim, SymDim
from clew.libraries.frame import Frame, Here, Tables, Word
from clew.runtime.counted_tables import CountedBody
from clew.runtime.layout import Layout
from clew.runtime.size_code import SizeCode, TooLarge
from clew.support.budgets import current
from clew.support.errors import UnsupportedError

# The stage that computes what follows from the caller's sizes.
_CALL: Final = 1


class Sizing:
    """The numbers of a library that depend on sizes. `sizes` are the free sizes, as names with
    lowest and highest values; `counted` are the instructions with data-dependent sizes, and
    `layers` names their layers in errors.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[str, int, int]],
        counted: CountedBody | None = None,
        layers: str = "",
    ) -> None:
        """Errors: U081 if a data-dependent size has no upper bound."""
        self._counted, self._layers = counted, layers
        self._n_sizes = len(sizes)
        limits = [{name: high for name, _, high in sizes}]
        for names in _names(counted):
            limits.append({})
            for name in names:
                limits[-1][name] = self._limit(name, limits)
        self._code = SizeCode({}, limits)
        self._needs: list[dict[int, None]] = [{} for _ in range(len(limits) + 1)]
        for name, low, _ in sizes:
            self.need(SymDim.symbol(name) - low)
        for need in () if counted is None else counted.needs:
            self.need(need)

    def _limit(self, name: str, limits: Sequence[Mapping[str, int]]) -> int:
        assert self._counted is not None
        if name in self._counted.capacities.values():
            return current().loop_steps
        most = self._counted.most.get(name)
        if most is None:
            raise UnsupportedError(
                "U081",
                "cannot export a model with a data-dependent size that has no upper bound",
                hint="docs/c-libraries.md lists the sizes that have bounds",
                layer=self._layers,
            )
        known = {name: high for stage in limits for name, high in stage.items()}
        code = SizeCode({}, [known])
        return max(0, code.intervals[_register(code, most, "a data-dependent size")][1])

    def rows_of(self, loop: int) -> int | None:
        """Returns the largest number of rows that a loop stacks; None if the number is known."""
        name = "" if self._counted is None else self._counted.capacities.get(loop, "")
        return current().loop_steps if name else None

    def most(self, dim: Dim, what: str) -> int:
        """Returns an upper bound of a dimension, at least 0. Makes calls fail if it is negative.

        Errors: U081 if it may not fit in 64 bits.
        """
        if not isinstance(dim, int):
            self.need(dim)
        return self.highest(dim, what)

    def highest(self, dim: Dim, what: str) -> int:
        """Returns an upper bound of a dimension, at least 0.

        Errors: U081 if it may not fit in 64 bits.
        """
        if isinstance(dim, int):
            return dim
        return max(0, self._code.intervals[_register(self._code, dim, what)][1])

    def need(self, dim: Dim) -> None:
        """Makes calls fail if a dimension is negative."""
        register = _register(self._code, dim, "a condition")
        if self._code.intervals[register][0] < 0:
            self._needs[self._code.stage_of[register]][register] = None

    def add_to(self, tables: Tables, layout: Layout) -> tuple[Here, Here, list[Here]]:
        """Adds the tables to a frame that has all its other words. Returns three places: the one to
        which a call writes the free sizes, the step that computes numbers from them, and the tables
        of the counting steps.
        """
        frame, code = tables.frame, self._code
        nothing = frame.add([0])
        targets: list[list[Word]] = [[] for _ in self._needs]
        for place, (base, dim) in frame.sized.items():
            register = _register(code, dim, "a number")
            stage = code.stage_of[register]
            if stage > _CALL and place in tables.patched:  # patches are applied before
                slot, address = tables.patched[place]
                targets[stage] += [register, slot, base, address]
            elif stage:
                targets[stage] += [register, place, base, nothing]
            else:
                frame[place] = _plus(base, code.initial[register])
        for stage, number, shape in () if self._counted is None else self._counted.shapes:
            entry, _ = _stages(self._counted)[stage]
            at = frame[Here(tables.args.offset + 8 * (layout.first_args[entry] + number))]
            assert isinstance(at, Here), "shapes go to memory of the workspace"
            for n, size in enumerate(shape):
                register = _register(code, size, "a size")
                targets[_CALL + 1 + stage] += [register, Here(at.offset + 8 * n), 0, nothing]
        assert not self._needs[0], "conditions of numbers hold"
        registers = frame.add(code.initial)
        sizes = frame.add([0] * self._n_sizes)
        args = frame.add([Here(sizes.offset + 8 * n) for n in range(self._n_sizes)])
        made = [self._table(frame, n, own, registers) for n, own in enumerate(targets) if n]
        for (entry, _), table in zip(_stages(self._counted), made[_CALL:], strict=True):
            step = tables.steps.offset + native_driver.STEP_BYTES * layout.starts[entry]
            frame[Here(step + native_driver.STEP_EXTRA)] = table
        return sizes, frame.add_step(args, made[0]), made[_CALL:]

    def _table(self, frame: Frame, stage: int, targets: Sequence[Word], registers: Here) -> Here:
        code = self._code
        first = code.first[stage - 1]
        count = len([*_names(self._counted)][stage - 2]) if stage > _CALL else self._n_sizes
        needs = list(self._needs[stage])
        table: dict[int, Word] = {
            native.SIZES_N_COUNTS: count,
            native.SIZES_LIMITS: frame.add([code.intervals[first + n][1] for n in range(count)]),
            native.SIZES_REGISTERS: registers,
            native.SIZES_FIRST: first,
            native.SIZES_N_CODE: len(code.stages[stage]),
            native.SIZES_CODE: frame.add([word for each in code.stages[stage] for word in each]),
            native.SIZES_N_NEEDS: len(needs),
            native.SIZES_NEEDS: frame.add(needs),
            native.SIZES_N_TARGETS: len(targets) // 4,
            native.SIZES_TARGETS: frame.add(targets),
        }
        return frame.add([table.get(at, 0) for at in range(0, native.SIZES_BYTES, 8)])


def _stages(counted: CountedBody | None) -> Sequence[tuple[int, tuple[str, ...]]]:
    return () if counted is None else counted.stages


def _names(counted: CountedBody | None) -> Iterator[tuple[str, ...]]:
    return (names for _, names in _stages(counted))


def _plus(base: int | Here, number: int) -> Word:
    return Here(base.offset + number) if isinstance(base, Here) else base + number


def _register(code: SizeCode, dim: Dim, what: str) -> int:
    """Returns the register of a dimension.

    Errors: U081 if it may not fit in 64 bits, or depends on a size that no step counts.
    """
    try:
        return code.register(dim)
    except KeyError as missing:
        raise UnsupportedError(
            "U081",
            f"cannot export a model in which {what} depends on the size {missing}, which no kernel "
            "counts",
        ) from None
    except TooLarge:
        raise UnsupportedError(
            "U081",
            f"cannot export a model in which {what}, {dim}, may not fit in 64 bits",
            hint="give smaller ranges when compiling: --sizes NAME=1:64",
        ) from None
