"""How many cycles a program takes.

A unit fetches instructions, one each `dispatch_cycles`, into a queue for each engine, and waits
while that queue is full. An engine starts its next instruction when its tokens are there, and gives
tokens when it ends, or later if their queue is full. A transfer first waits for DRAM
(`dram_latency_cycles`), then shares its bandwidth equally with the transfers of other engines. Each
row takes whole beats of `dram_bytes_per_cycle`; rows without a gap count as one. Each padded
element takes a cycle. The fetch of instructions takes no bandwidth.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clew.backends.vta.assembler import instruction_text
from clew.backends.vta.config import Config
from clew.backends.vta.isa import Alu, Gemm, Instruction, Load, Store
from clew.backends.vta.names import Engine, Memory
from clew.backends.vta.order import order_of
from clew.backends.vta.program import Program
from clew.support.errors import InputError
from clew.support.shown import Shown
from clew.support.tables import as_text, table

_EPSILON: Final = 1e-6
DISPATCH: Final = "dispatch"


@dataclass(frozen=True)
class Slice:
    """An instruction on its engine, in cycles. `waited` is the time since the engine ended the
    instruction before, `waited_for` the last cause of waiting; `tokens` has the instructions whose
    tokens it took.
    """

    engine: Engine
    index: int
    begin: int
    end: int
    waited: int
    waited_for: str
    tokens: tuple[int, ...]

    @property
    def cycles(self) -> int:
        """The cycles that the instruction takes."""
        return self.end - self.begin


@dataclass(frozen=True)
class LayerTime:
    """The cycles of one layer's instructions on each engine, and from the first to the last."""

    layers: tuple[str, ...]
    busy: Mapping[Engine, int]
    span: int
    macs: int


@dataclass(frozen=True, repr=False)
class Timing(Shown):
    """The cycles of a program, and the bytes that it moves, by memory."""

    program: Program
    config: Config
    cycles: int
    slices: tuple[Slice, ...]
    macs: int
    bytes_moved: Mapping[Memory, int]

    def _about(self) -> str:
        return f"{self.cycles} cycles, {self.utilization:.0%} of peak"

    @property
    def utilization(self) -> float:
        """The share of the multiply-accumulates that the machine could do in these cycles."""
        peak = self.cycles * self.config.macs_per_uop / self.config.gemm_cycles
        return self.macs / peak if peak else 0.0

    @property
    def seconds(self) -> float:
        """The time at the configured clock."""
        return self.cycles / (self.config.clock_mhz * 1e6)

    def busy(self, engine: Engine) -> int:
        """Returns the cycles in which an engine runs an instruction."""
        return sum(s.cycles for s in self.slices if s.engine is engine)

    def waits(self, engine: Engine) -> Counter[str]:
        """Returns the cycles that an engine waits between instructions, by the cause of waiting."""
        found: Counter[str] = Counter()
        for each in self.slices:
            if each.engine is engine and each.waited:
                found[each.waited_for] += each.waited
        return found

    def layers(self) -> tuple[LayerTime, ...]:
        """Returns the time of each set of layers that instructions serve together."""
        grouped: dict[tuple[str, ...], list[Slice]] = defaultdict(list)
        for each in sorted(self.slices, key=lambda s: s.index):
            grouped[self.program.layers(each.index)].append(each)
        return tuple(
            LayerTime(
                layers,
                {e: sum(s.cycles for s in slices if s.engine is e) for e in Engine},
                max(s.end for s in slices) - min(s.begin for s in slices),
                sum(_macs(self.program.instructions[s.index], self.config) for s in slices),
            )
            for layers, slices in grouped.items()
        )

    def __str__(self) -> str:
        head = (
            f"{self.cycles:,} cycles ({self.seconds * 1e6:,.1f} µs at "
            f"{self.config.clock_mhz} MHz), {self.macs:,} MACs, {self.utilization:.1%} of peak"
        )
        engines = table("engine", "busy", "share", "waits", right=("busy", "share"))
        for engine in Engine:
            busy = self.busy(engine)
            waits = ", ".join(f"{n:,} for {what}" for what, n in self.waits(engine).most_common())
            share = f"{busy / self.cycles:.1%}" if self.cycles else ""
            engines.add_row(engine.name.lower(), f"{busy:,}", share, waits)
        moved = table("memory", "bytes", right=("bytes",))
        for memory, count in sorted(self.bytes_moved.items()):
            moved.add_row(memory.name.lower(), f"{count:,}")
        layers = table(
            "layers", "span", "load", "compute", "store", "MACs",
            right=("span", "load", "compute", "store", "MACs"),
        )  # fmt: skip
        for each in self.layers():
            cells = (each.span, *(each.busy[e] for e in Engine), each.macs)
            layers.add_row(", ".join(each.layers) or "(none)", *(f"{n:,}" for n in cells))
        return "\n\n".join([head, as_text(engines), as_text(moved), as_text(layers)])


def time(program: Program, config: Config | None = None) -> Timing:
    """Returns the time of a program. It depends on no values.

    Errors: those of `Program.check` and `order_of`; I439 if the program needs longer queues.
    """
    config = config or Config.default()
    program.check(config)
    order_of(program)
    slices = _Machine(program, config).run()
    moved: Counter[Memory] = Counter()
    for each in program.instructions:
        if isinstance(each, Load | Store) and not each.is_empty:
            size = config.element_bytes(each.memory)
            moved[each.memory] += each.y_size * each.x_size * size
    return Timing(
        program,
        config,
        max((s.end for s in slices), default=0),
        tuple(slices),
        sum(_macs(each, config) for each in program.instructions),
        moved,
    )


def _macs(instruction: Instruction, config: Config) -> int:
    if isinstance(instruction, Gemm) and not instruction.reset:
        return instruction.steps * config.macs_per_uop
    return 0


@dataclass
class _Running:
    """The instruction on an engine, in up to three phases: a fixed time, a transfer of `left`
    bytes, and a fixed time after it (`tail`). `until` is the end of a fixed phase.
    """

    index: int
    begin: int
    until: float
    left: float
    tail: int
    moving: bool = False
    ended: bool = False


class _Lane:
    """An engine: its queue of instructions and the running one."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.running: _Running | None = None
        self.free_since = 0
        self.blocked_by = DISPATCH
        self.waited: tuple[int, str] = (0, "")
        self.tokens: tuple[int, ...] = ()


class _Machine:
    """One run of the timing model, from event to event."""

    def __init__(self, program: Program, config: Config) -> None:
        self._program, self._config = program, config
        self._lanes = {e: _Lane() for e in Engine}
        self._tokens: dict[tuple[Engine, Engine], deque[int]] = defaultdict(deque)
        self._now = 0.0
        self._fetched = 0
        self._next_fetch = 0
        self._slices: list[Slice] = []

    def run(self) -> list[Slice]:
        """Returns when each instruction runs."""
        count = len(self._program.instructions)
        while len(self._slices) < count:
            while self._fetch() or self._end() or self._start():
                pass
            if len(self._slices) < count:
                self._advance()
        return self._slices

    def _fetch(self) -> bool:
        """Fetches an instruction if it is time and its queue has room."""
        if self._fetched == len(self._program.instructions) or self._next_fetch > self._now:
            return False
        lane = self._lanes[self._program.instructions[self._fetched].engine]
        if len(lane.queue) >= self._config.command_queue_depth:
            return False
        lane.queue.append(self._fetched)
        self._fetched += 1
        self._next_fetch = math.ceil(self._now) + self._config.dispatch_cycles
        return True

    def _start(self) -> bool:
        """Starts an instruction on a free engine whose tokens are there."""
        for engine, lane in self._lanes.items():
            if lane.running is not None:
                continue
            if not lane.queue:
                lane.blocked_by = DISPATCH
                continue
            instruction = self._program.instructions[lane.queue[0]]
            missing = [s for s in instruction.pops if not self._tokens[s, engine]]
            if missing:
                lane.blocked_by = f"a token from {missing[0].name.lower()}"
                continue
            lane.tokens = tuple(self._tokens[s, engine].popleft() for s in instruction.pops)
            begin = math.ceil(self._now)
            lane.waited = (begin - lane.free_since, lane.blocked_by)
            lane.running = self._running(lane.queue.popleft(), begin)
            return True
        return False

    def _running(self, index: int, begin: int) -> _Running:
        config, instruction = self._config, self._program.instructions[index]
        if isinstance(instruction, Load | Store) and not instruction.is_empty:
            row = instruction.x_size * config.element_bytes(instruction.memory)
            joined = instruction.x_stride == instruction.x_size
            rows, row = (1, row * instruction.y_size) if joined else (instruction.y_size, row)
            beat = config.dram_bytes_per_cycle
            pads = instruction.sram_elements - instruction.y_size * instruction.x_size
            left = float(rows * -(-row // beat) * beat)
            return _Running(index, begin, begin + config.dram_latency_cycles, left, pads)
        cycles = 1
        if isinstance(instruction, Gemm) and instruction.steps:
            cycles = instruction.steps * config.gemm_cycles + config.gemm_latency_cycles
        elif isinstance(instruction, Alu) and instruction.steps:
            each = config.alu_imm_cycles if instruction.use_imm else config.alu_tensor_cycles
            cycles = instruction.steps * each + config.alu_latency_cycles
        return _Running(index, begin, begin + cycles, 0.0, 0)

    def _end(self) -> bool:
        """Ends a phase that is over, or an instruction."""
        for engine, lane in self._lanes.items():
            running = lane.running
            if running is None:
                continue
            if running.moving and running.left <= _EPSILON:
                running.moving = False
                running.left = 0.0
                running.until = math.ceil(self._now - _EPSILON) + running.tail
                return True
            if not running.moving and running.until <= self._now + _EPSILON:
                if running.left:
                    running.moving = True
                    return True
                if self._give(engine, running):
                    lane.running = None
                    lane.free_since = math.ceil(self._now - _EPSILON)
                    waited, waited_for = lane.waited
                    made = Slice(
                        engine, running.index, running.begin, lane.free_since, waited,
                        waited_for if waited else "", lane.tokens,
                    )  # fmt: skip
                    self._slices.append(made)
                    return True
        return False

    def _give(self, engine: Engine, running: _Running) -> bool:
        """Gives the tokens of an instruction, if their queues have room."""
        targets = self._program.instructions[running.index].pushes
        if any(len(self._tokens[engine, t]) >= self._config.token_queue_depth for t in targets):
            return False
        for target in targets:
            self._tokens[engine, target].append(running.index)
        return True

    def _advance(self) -> None:
        """Moves the time to the next event.

        Errors: I439 if there is none.
        """
        running = [lane.running for lane in self._lanes.values() if lane.running is not None]
        moving = [r for r in running if r.moving]
        share = self._config.dram_bytes_per_cycle / max(1, len(moving))
        times = [r.until for r in running if not r.moving and r.until > self._now + _EPSILON]
        times += [self._now + r.left / share for r in moving]
        if self._fetched < len(self._program.instructions) and self._next_fetch > self._now:
            times.append(self._next_fetch)
        if not times:
            raise self._stuck()
        then = min(times)
        for each in moving:
            each.left -= share * (then - self._now)
        self._now = then

    def _stuck(self) -> InputError:
        index = min(
            [lane.running.index for lane in self._lanes.values() if lane.running is not None]
            + [lane.queue[0] for lane in self._lanes.values() if lane.queue]
        )
        config, text = self._config, instruction_text(self._program.instructions[index])
        return InputError(
            "I439",
            f"VTA: the program never ends with queues of {config.command_queue_depth} instructions "
            f"and {config.token_queue_depth} tokens: instruction {index} ({text}) waits",
            hint="give tokens earlier in the program, or fewer of them before they are taken",
            layer=", ".join(self._program.layers(index)),
        )
