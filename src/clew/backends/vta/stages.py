"""Steps that load, compute and store on the compute and the store engine, without products.

With two parts, the next step's data are loaded before a step's results are handed to the store
engine: loads and stores would share the bandwidth of DRAM, and the vector unit uses none.
"""

from __future__ import annotations

from collections.abc import Callable

from clew.backends.vta.builder import Builder
from clew.backends.vta.names import Engine

Emit = Callable[[int], None]


def emit_stages(
    builder: Builder, count: int, parts: int, *, load: Emit, compute: Emit, store: Emit
) -> None:
    """Appends `count` steps. Step `n` loads to the part `n % parts` of `acc`, and stores from
    there.
    """

    def begin(number: int) -> None:
        if number >= parts:
            builder.pop(Engine.STORE, Engine.COMPUTE)
        with builder.origin(label="load"):
            load(number)

    for number in range(count):
        if parts == 1 or not number:
            begin(number)
        with builder.origin(label="compute"):
            compute(number)
        if parts > 1 and number + 1 < count:
            begin(number + 1)
        builder.push(Engine.COMPUTE, Engine.STORE)
        builder.pop(Engine.COMPUTE, Engine.STORE)
        with builder.origin(label="store"):
            store(number)
        if number + parts < count:
            builder.push(Engine.STORE, Engine.COMPUTE)
