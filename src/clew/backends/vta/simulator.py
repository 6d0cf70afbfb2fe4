"""Runs programs as the machine would, with additional checks.

Values are exact: int32 wraps, and sums in floats stay below the integers that floats hold
(`plans.py`). `inp` and `wgt` are kept as floats for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from clew.backends.vta.config import Config
from clew.backends.vta.hazards import Tracker
from clew.backends.vta.isa import Alu, Finish, Gemm, Load, Store
from clew.backends.vta.names import AluOp, Memory
from clew.backends.vta.order import check_finish, order_of
from clew.backends.vta.plans import Group, Level, Plan, Planner, reach_of
from clew.backends.vta.program import Array, Buffer, Program
from clew.support.errors import InputError

_MOST_SHIFT: Final = 31
_OPERATIONS: Final[Mapping[AluOp, Callable[[Array, Array], Array]]] = {
    AluOp.MIN: np.minimum,
    AluOp.MAX: np.maximum,
    AluOp.ADD: np.add,
    AluOp.MUL: np.multiply,
}


class Simulator:
    """A VTA on which programs run. Each run starts with empty memories.

    With `check=False`, only ranges of addresses and tokens are checked, not hazards.
    """

    def __init__(self, config: Config | None = None, *, check: bool = True) -> None:
        self.config = config or Config.default()
        self._check = check
        self._planner = Planner(self.config)

    def run(self, program: Program, inputs: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Returns the outputs of a program by name, `(elements, *element)` each. Inputs have the
        shapes and dtypes of their buffers; they may also replace the data of constants.

        Errors: those of `Program.check`, `order_of` and `check_finish`; I434 for inputs that are
        missing or of another shape or dtype, I435 and I436 for addresses out of range, I437 for
        reads of memory that was never written, I438 for a missing token, I442 for shifts by more
        than 31 bits.
        """
        program.check(self.config)
        return _Run(self.config, program, self._planner, self._check).outputs(inputs or {})


class _Run:
    """One run: the memories of the machine."""

    def __init__(self, config: Config, program: Program, planner: Planner, checked: bool) -> None:
        self._config, self._program, self._planner = config, program, planner
        self._order = order_of(program)
        self._tracker = Tracker(program, config, self._order)
        self._checked = checked
        floats = np.float32 if config.exact_in_f32 else np.float64
        self._uop = np.zeros(config.depth(Memory.UOP), np.uint32)
        self._inp = self._memory(Memory.INP, floats)
        self._wgt = self._memory(Memory.WGT, floats)
        self._acc = self._memory(Memory.ACC, np.int32)
        self._dram: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}

    def _memory(self, memory: Memory, dtype: Any) -> Array:
        return np.zeros((self._config.depth(memory), *self._config.element_shape(memory)), dtype)

    def outputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the program."""
        self._fill(inputs)
        for index in self._order.sequence:
            self._tracker.at(index)
            match self._program.instructions[index]:
                case Load() as load if not load.is_empty:
                    self._load(load)
                case Store() as store if not store.is_empty:
                    self._store(store)
                case (Gemm() | Alu()) as loop if loop.steps:
                    self._loop(loop)
                case Finish() if self._checked:
                    check_finish(self._program, self._order)
        return self._results()

    def _results(self) -> dict[str, Array]:
        found = {}
        for buffer in self._program.buffers:
            if buffer.role != "output":
                continue
            missing = self._tracker.unwritten(buffer) if self._checked else 0
            if missing:
                raise self._tracker.fails(
                    "I437",
                    f"ends the program, and {missing} bytes of the output {buffer.name} "
                    "were never written",
                )
            values = self._dram[buffer.name].view(self._config.element_dtype(buffer.memory))
            found[buffer.name] = values.reshape(buffer.shape(self._config))
        return found

    def _fill(self, inputs: Mapping[str, Array]) -> None:
        """Puts inputs and constants into DRAM."""
        given = dict(inputs)
        for buffer in self._program.buffers:
            data = (
                given.pop(buffer.name, buffer.data)
                if buffer.role in ("input", "constant")
                else None
            )
            size = buffer.size_bytes(self._config)
            if buffer.role in ("output", "scratch"):
                self._dram[buffer.name] = np.zeros(size, np.uint8)
                continue
            shape, dtype = buffer.shape(self._config), self._config.element_dtype(buffer.memory)
            if data is None:
                raise InputError("I434", f"VTA: the {buffer.role} {buffer.name} has no values")
            if data.shape != shape or data.dtype != dtype:
                raise InputError(
                    "I434",
                    f"VTA: the {buffer.role} {buffer.name} is {dtype}{list(shape)}, not "
                    f"{data.dtype}{list(data.shape)}",
                )
            self._dram[buffer.name] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if given:
            raise InputError("I434", f"VTA: the program has no input {', '.join(map(repr, given))}")

    def _rows(self, transfer: Load | Store, buffer: Buffer) -> Array:
        """Returns the elements in DRAM that a transfer moves, as a view `(y, x, *element)`."""
        memory = transfer.memory
        dtype, shape = self._config.element_dtype(memory), self._config.element_shape(memory)
        size = self._config.element_bytes(memory)
        begin = transfer.dram * size - buffer.address
        end = begin + ((transfer.y_size - 1) * transfer.x_stride + transfer.x_size) * size
        values = self._dram[buffer.name][begin:end].view(dtype)
        per = values.itemsize
        inner = [per * int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
        return np.lib.stride_tricks.as_strided(
            values,
            (transfer.y_size, transfer.x_size, *shape),
            (transfer.x_stride * size, size, *inner),
        )

    def _load(self, load: Load) -> None:
        memory = Memory.ACC if load.memory is Memory.ACC8 else load.memory
        self._tracker.check_range(memory, load.sram + load.sram_elements - 1)
        buffer = self._tracker.buffer_of(load)
        places = slice(load.sram, load.sram + load.sram_elements)
        if self._checked:
            self._tracker.read_dram(load, buffer)
            self._tracker.write(memory, places)
        held = {
            Memory.UOP: self._uop,
            Memory.INP: self._inp,
            Memory.WGT: self._wgt,
            Memory.ACC: self._acc,
        }[memory]
        rows = self._rows(load, buffer)
        if load.sram_elements == load.y_size * load.x_size:
            held[places].reshape(rows.shape)[...] = rows
            return
        block = held[places].reshape(-1, load.width, *held.shape[1:])
        block[...] = 0
        y, x = load.y_pad_0, load.x_pad_0
        block[y : y + load.y_size, x : x + load.x_size] = rows

    def _store(self, store: Store) -> None:
        self._tracker.check_range(Memory.OUT, store.sram + store.sram_elements - 1)
        buffer = self._tracker.buffer_of(store)
        places = slice(store.sram, store.sram + store.sram_elements)
        if self._checked:
            self._tracker.read_out(places)
            self._tracker.write_dram(store, buffer)
        rows = self._rows(store, buffer)
        # Row by row: rows that overlap are written in order.
        values = self._acc[places].astype(rows.dtype).reshape(rows.shape)
        if store.x_stride >= store.x_size:
            rows[...] = values
        else:
            for row, value in zip(rows, values, strict=True):
                row[...] = value

    def _loop(self, loop: Gemm | Alu) -> None:
        self._tracker.check_range(Memory.UOP, loop.uop_end - 1)
        uops = slice(loop.uop_begin, loop.uop_end)
        if self._checked:
            self._tracker.read(Memory.UOP, uops)
        words = self._uop[uops]
        self._check_reach(loop, words)
        for plan in self._planner.plans(loop, words):
            if isinstance(loop, Alu):
                self._alu(loop, plan)
            else:
                self._gemm(loop, plan)

    def _check_reach(self, loop: Gemm | Alu, words: Array) -> None:
        reach = reach_of(loop, words, self._config)
        self._tracker.check_range(Memory.ACC, reach.dst)
        if isinstance(loop, Alu):
            if not loop.use_imm:
                self._tracker.check_range(Memory.ACC, reach.src)
        elif not loop.reset:
            self._tracker.check_range(Memory.INP, reach.src)
            self._tracker.check_range(Memory.WGT, reach.wgt)

    def _gemm(self, gemm: Gemm, plan: Plan) -> None:
        if self._checked:
            if not gemm.reset:
                self._tracker.read(Memory.INP, plan.src)
                self._tracker.read(Memory.WGT, plan.wgt)
                self._tracker.read(Memory.ACC, plan.dst)
            self._tracker.write(Memory.ACC, plan.dst, to_out=not gemm.reset)
        if gemm.reset:
            self._acc[plan.dst] = 0
        for group in plan.groups:
            sums = self._products(group)
            if sums.dtype != np.float32:
                sums = sums.astype(np.int64)
            self._acc[group.dst] += sums.astype(np.int32)

    def _products(self, group: Group) -> Array:
        """Returns the sums of products of destinations, `(u, batch, block_out)`."""
        batch, block_in = self._config.batch, self._config.block_in
        count, terms = group.src.shape
        inp = self._inp[group.src]  # (u, terms, batch, block_in)
        wgt = self._wgt[group.wgt]  # ([u,] terms, block_out, block_in)
        if batch > 1:
            inp = inp.transpose(0, 2, 1, 3)
        if group.wgt.ndim == 1:
            flat = wgt.transpose(0, 2, 1).reshape(terms * block_in, -1)
            sums: Array = inp.reshape(-1, terms * block_in) @ flat
            return sums.reshape(count, batch, -1)
        columns = wgt.transpose(0, 1, 3, 2).reshape(count, terms * block_in, -1)
        each: Array = np.matmul(inp.reshape(count, batch, terms * block_in), columns)
        return each

    def _alu(self, alu: Alu, plan: Plan) -> None:
        if self._checked:
            self._tracker.read(Memory.ACC, plan.src)
            self._tracker.write(Memory.ACC, plan.dst, to_out=True)
        for level in plan.levels:
            self._acc[level.dst] = self._result(alu, level)

    def _result(self, alu: Alu, level: Level) -> Array:
        left = self._acc[level.dst]
        right: Any = np.int32(alu.imm) if alu.use_imm else self._acc[level.src]
        if alu.op is AluOp.SHR:
            self._check_shift(right)
            by = np.maximum(right, 0)
            result: Array = np.where(right >= 0, left >> by, left << np.maximum(-right, 0))
        else:
            result = _OPERATIONS[alu.op](left, right)
        return result

    def _check_shift(self, by: Array) -> None:
        least, most = int(np.min(by)), int(np.max(by))
        if least < -_MOST_SHIFT or most > _MOST_SHIFT:
            shown = most if most > _MOST_SHIFT else least
            raise self._tracker.fails(
                "I442", f"shifts by {shown} bits; the machine shifts by up to {_MOST_SHIFT}"
            )
