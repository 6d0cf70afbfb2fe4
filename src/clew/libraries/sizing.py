"""Free sizes: the driver's table that computes numbers of a frame from them.

Polynomials of sizes are instructions on registers (`runtime.size_code`), which the driver runs
where data decide sizes. Here the caller gives the sizes. The arena is laid out once, for the
largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.codegen.driver import sizes as native
from clew.ir.dims import Dim, SymDim
from clew.libraries.frame import Frame, Here, Word
from clew.runtime.size_code import SizeCode, TooLarge
from clew.support.errors import UnsupportedError


class Sizing:
    """The numbers of a library that depend on its sizes, given as names with lowest and highest
    values.
    """

    def __init__(self, sizes: Sequence[tuple[str, int, int]]) -> None:
        self._code = SizeCode({}, [{name: high for name, _, high in sizes}])
        self._n_sizes = len(sizes)
        self._needs: list[int] = []
        for name, low, _ in sizes:
            self.need(SymDim.symbol(name) - low)

    def most(self, dim: Dim, what: str) -> int:
        """Returns a number that a dimension does not exceed, 0 or more.

        Errors: U081 if it may not fit in 64 bits.
        """
        if isinstance(dim, int):
            return dim
        return max(0, self._code.intervals[self._register(dim, what)][1])

    def need(self, dim: Dim) -> None:
        """Makes calls fail in which a dimension is negative."""
        register = self._register(dim, "a condition")
        if self._code.intervals[register][0] < 0:
            self._needs.append(register)

    def _register(self, dim: Dim, what: str) -> int:
        try:
            return self._code.register(dim)
        except TooLarge:
            raise UnsupportedError(
                "U081",
                f"a library of a model where {what}, {dim}, may not fit in 64 bits",
                hint="give smaller ranges when compiling: --sizes NAME=1:64",
            ) from None

    def add_to(self, frame: Frame) -> tuple[Here, Here]:
        """Adds the table to a frame whose words are all there. Returns the places of the sizes,
        which a call writes, and of the step that computes the numbers.
        """
        code, nothing = self._code, frame.add([0])
        targets: list[Word] = []
        for place, (base, dim) in frame.sized.items():
            targets += [self._register(dim, "a number"), place, base, nothing]
        (first,), n_counts = code.first, self._n_sizes
        sizes = frame.add([0] * n_counts)
        args = frame.add([Here(sizes.offset + 8 * n) for n in range(n_counts)])
        words = [word for instruction in code.stages[1] for word in instruction]
        table: dict[int, Word] = {
            native.SIZES_N_COUNTS: n_counts,
            native.SIZES_LIMITS: frame.add([code.intervals[first + n][1] for n in range(n_counts)]),
            native.SIZES_REGISTERS: frame.add(code.initial),
            native.SIZES_FIRST: first,
            native.SIZES_N_CODE: len(code.stages[1]),
            native.SIZES_CODE: frame.add(words),
            native.SIZES_N_NEEDS: len(self._needs),
            native.SIZES_NEEDS: frame.add(self._needs),
            native.SIZES_N_TARGETS: len(frame.sized),
            native.SIZES_TARGETS: frame.add(targets),
        }
        place = frame.add([table.get(at, 0) for at in range(0, native.SIZES_BYTES, 8)])
        return sizes, frame.add_step(args, place)
