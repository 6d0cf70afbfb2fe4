"""VTA, a simulated accelerator: its instructions, programs for it, and how they run.

```python
from clew.backends.vta import Builder, Engine, Memory, MicroOp, Simulator, time
```
"""

from __future__ import annotations

from clew.backends.vta.assembler import assemble, disassemble, instruction_text
from clew.backends.vta.builder import Builder
from clew.backends.vta.config import Config
from clew.backends.vta.convolution import Operands, emit_convolution
from clew.backends.vta.isa import (
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
    decode,
    encode,
)
from clew.backends.vta.names import AluOp, Engine, Memory, Opcode
from clew.backends.vta.packing import pack_bias, pack_data, pack_weights, unpack_data
from clew.backends.vta.program import Buffer, Origin, Program
from clew.backends.vta.simulator import Simulator
from clew.backends.vta.tiles import Convolution, Epilogue, Tile, choose_tile
from clew.backends.vta.timeline import timeline
from clew.backends.vta.timing import Timing, time

__all__ = [
    "Alu",
    "AluOp",
    "Buffer",
    "Builder",
    "Config",
    "Convolution",
    "Engine",
    "Epilogue",
    "Finish",
    "Gemm",
    "Instruction",
    "Load",
    "Memory",
    "MicroOp",
    "Opcode",
    "Operands",
    "Origin",
    "Program",
    "Simulator",
    "Store",
    "Tile",
    "Timing",
    "assemble",
    "choose_tile",
    "decode",
    "disassemble",
    "emit_convolution",
    "encode",
    "instruction_text",
    "pack_bias",
    "pack_data",
    "pack_weights",
    "time",
    "timeline",
    "unpack_data",
]
