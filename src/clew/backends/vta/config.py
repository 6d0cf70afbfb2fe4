"""The sizes and speeds of one VTA. All of them are in one JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.backends.vta.names import Memory
from clew.support.errors import InputError
from clew.support.files import read_json_file, reason_of

DEFAULT_FILE: Final = Path(__file__).with_name("config.json")
"""The published sizes (`vta_config.json`), and speeds of a small FPGA board."""

ACC_BITS: Final = 32
UOP_BITS: Final = 32
_DTYPES: Final[Mapping[int, np.dtype[Any]]] = {
    8: np.dtype(np.int8),
    16: np.dtype(np.int16),
    32: np.dtype(np.int32),
}
_MAY_BE_ZERO: Final = ("dram_latency_cycles", "gemm_latency_cycles", "alu_latency_cycles")
_BUFFERS: Final = ("uop_bytes", "inp_bytes", "wgt_bytes", "acc_bytes")
_WORD_BITS: Final = 64
_LOOP_BITS: Final = 14
_SRAM_BITS: Final = 16
_MOST_EXACT: Final = 2**24
# The keys of TVM's `vta_config.json`, which are base-2 logarithms, and the fields they set.
_PUBLISHED: Final = {
    "LOG_INP_WIDTH": ("inp_bits",),
    "LOG_WGT_WIDTH": ("wgt_bits",),
    "LOG_OUT_WIDTH": ("out_bits",),
    "LOG_BATCH": ("batch",),
    "LOG_BLOCK": ("block_in", "block_out"),
    "LOG_BLOCK_IN": ("block_in",),
    "LOG_BLOCK_OUT": ("block_out",),
    "LOG_UOP_BUFF_SIZE": ("uop_bytes",),
    "LOG_INP_BUFF_SIZE": ("inp_bytes",),
    "LOG_WGT_BUFF_SIZE": ("wgt_bytes",),
    "LOG_ACC_BUFF_SIZE": ("acc_bytes",),
}
_IGNORED: Final = ("TARGET", "HW_VER", "LOG_ACC_WIDTH")


@dataclass(frozen=True)
class Config:
    """The sizes and speeds of one VTA.

    A micro-op multiplies `inp[batch, block_in]` by the transpose of `wgt[block_out, block_in]` into
    `acc[batch, block_out]`. Sizes of memories are in bytes, speeds in cycles. A GEMM takes
    `gemm_cycles` for each micro-op, an ALU instruction `alu_imm_cycles` or `alu_tensor_cycles`,
    and each instruction once the latency of its pipeline.

    Errors: I430.
    """

    batch: int
    block_in: int
    block_out: int
    inp_bits: int
    wgt_bits: int
    out_bits: int
    uop_bytes: int
    inp_bytes: int
    wgt_bytes: int
    acc_bytes: int
    dram_bytes: int
    dram_bytes_per_cycle: int
    dram_latency_cycles: int
    gemm_cycles: int
    gemm_latency_cycles: int
    alu_imm_cycles: int
    alu_tensor_cycles: int
    alu_latency_cycles: int
    dispatch_cycles: int
    command_queue_depth: int
    token_queue_depth: int
    clock_mhz: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(
                    "I430", f"VTA: {field.name} is {value!r}, not an integer ≥ {least}"
                )
        for name in ("inp_bits", "wgt_bits", "out_bits"):
            if getattr(self, name) not in (8, 16):
                raise InputError("I430", f"VTA: {name} is {getattr(self, name)}, not 8 or 16")
        for name, memory in zip(
            _BUFFERS, (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC), strict=True
        ):
            depth, rest = divmod(getattr(self, name), self.element_bytes(memory))
            if rest or depth < 1 or depth & (depth - 1) or depth > 1 << _SRAM_BITS:
                raise InputError(
                    "I430",
                    f"VTA: {name} is {getattr(self, name)}, not a power of two (up to "
                    f"2**{_SRAM_BITS}) times the {self.element_bytes(memory)} bytes of an element",
                )
        self._check_layout()

    def _check_layout(self) -> None:
        """Checks that indices fit the bits of micro-ops and instructions."""
        acc, inp, wgt = (self.index_bits(m) for m in (Memory.ACC, Memory.INP, Memory.WGT))
        uop = self.index_bits(Memory.UOP)
        widths = {
            "a micro-op": (acc + self.source_bits + wgt, UOP_BITS),
            "the first word of GEMM and ALU": (
                3 + 4 + 1 + 2 * uop + 1 + 2 * _LOOP_BITS,
                _WORD_BITS,
            ),
            "the second word of GEMM": (2 * (acc + inp + wgt), _WORD_BITS),
            "the second word of ALU": (4 * acc + 3 + 1 + 16, _WORD_BITS),
        }
        for what, (bits, most) in widths.items():
            if bits > most:
                raise InputError(
                    "I430",
                    f"VTA: {what} needs {bits} bits of {most}",
                    hint="make a buffer smaller, or its elements larger",
                )

    @classmethod
    def default(cls) -> Config:
        """Returns the published sizes."""
        return cls.from_json(DEFAULT_FILE)

    @classmethod
    def from_json(cls, path: str | Path) -> Config:
        """Returns the configuration in a file. Fields that the file lacks have their default. The
        keys of TVM's `vta_config.json` are read, too.

        Errors: I430.
        """
        try:
            found = read_json_file(path)
        except (OSError, ValueError) as error:
            raise InputError(
                "I430", f"VTA: {str(path)!r} cannot be read: {reason_of(error)}"
            ) from None
        if not isinstance(found, Mapping):
            raise InputError("I430", f"VTA: {str(path)!r} has no JSON object")
        values = {} if Path(path) == DEFAULT_FILE else dataclasses.asdict(cls.default())
        values.update(_fields(found))
        return cls(**values)

    def to_json(self) -> str:
        """Returns the configuration as JSON, for `from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    def replace(self, **changes: int) -> Config:
        """Returns the configuration with other values.

        Errors: I430.
        """
        return Config(**{**dataclasses.asdict(self), **_fields(changes)})

    def element_shape(self, memory: Memory) -> tuple[int, ...]:
        """Returns the shape of an element of a memory; `()` for micro-ops."""
        return self._shapes[memory]

    def element_dtype(self, memory: Memory) -> np.dtype[Any]:
        """Returns the dtype of an element's values in DRAM."""
        return self._dtypes[memory]

    def element_bytes(self, memory: Memory) -> int:
        """Returns the bytes of an element in DRAM."""
        return int(np.prod(self._shapes[memory])) * self._dtypes[memory].itemsize

    def depth(self, memory: Memory) -> int:
        """Returns the number of elements that a memory holds."""
        return self._depths[memory]

    def index_bits(self, memory: Memory) -> int:
        """Returns the bits of an index into a memory."""
        return (self._depths[memory] - 1).bit_length()

    @property
    def source_bits(self) -> int:
        """The bits of a micro-op's second index: into `inp` for GEMM, into `acc` for ALU."""
        return max(self.index_bits(Memory.INP), self.index_bits(Memory.ACC))

    @property
    def macs_per_uop(self) -> int:
        """The multiply-accumulates of one micro-op of GEMM."""
        return self.batch * self.block_in * self.block_out

    @property
    def exact_in_f32(self) -> bool:
        """Whether f32 holds all sums of a micro-op's products exactly."""
        return self.block_in << (self.inp_bits + self.wgt_bits - 2) <= _MOST_EXACT

    @cached_property
    def _shapes(self) -> dict[Memory, tuple[int, ...]]:
        acc = (self.batch, self.block_out)
        return {
            Memory.UOP: (),
            Memory.WGT: (self.block_out, self.block_in),
            Memory.INP: (self.batch, self.block_in),
            Memory.ACC: acc,
            Memory.OUT: acc,
            Memory.ACC8: acc,
        }

    @cached_property
    def _dtypes(self) -> dict[Memory, np.dtype[Any]]:
        return {
            Memory.UOP: np.dtype(np.uint32),
            Memory.WGT: _DTYPES[self.wgt_bits],
            Memory.INP: _DTYPES[self.inp_bits],
            Memory.ACC: _DTYPES[ACC_BITS],
            Memory.OUT: _DTYPES[self.out_bits],
            Memory.ACC8: _DTYPES[8],
        }

    @cached_property
    def _depths(self) -> dict[Memory, int]:
        held = {Memory.UOP: self.uop_bytes, Memory.WGT: self.wgt_bytes, Memory.INP: self.inp_bytes}
        depths = {m: size // self.element_bytes(m) for m, size in held.items()}
        acc = self.acc_bytes // self.element_bytes(Memory.ACC)
        return depths | {Memory.ACC: acc, Memory.OUT: acc, Memory.ACC8: acc}


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of fields in a JSON object.

    Errors: I430 for an unknown key.
    """
    known = {field.name for field in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key in _PUBLISHED:
            if not isinstance(value, int) or not 0 <= value < UOP_BITS:
                raise InputError("I430", f"VTA: {key} is {value!r}, not a logarithm")
            values.update(dict.fromkeys(_PUBLISHED[key], 1 << value))
        elif key in known:
            values[key] = value
        elif key not in _IGNORED:
            raise InputError(
                "I430",
                f"VTA: the unknown field {key!r}",
                hint=f"fields are {', '.join(sorted(known))}",
            )
    return values
