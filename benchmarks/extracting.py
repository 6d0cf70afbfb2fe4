"""Extracts parts of networks and runs them alone: every kernel, random ranges of layers,
partitions.

    python benchmarks/extracting.py
    python benchmarks/extracting.py --models resnet18,if_branches --ranges 10

Every kernel is written as text, read, compiled to the same kernel, and gives the captured bits.
Random ranges of layers also give the captured bits; some of them are also written as text and as
ONNX, run by ONNX Runtime (ORT), and compiled with all optimizations. The parts of a random
partition, run in sequence, give the bits of the whole. Exits with 1 if anything differs.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import onnxruntime
import typer
from rich.table import Table

import clew
import zoo
from clew.extraction import extract_ranges
from clew.extraction.fused import FusedProgram
from clew.extraction.graph import ModuleGraph
from clew.support.difference import relative_error
from clew.tap.capture import Unkept
from harness.report import console, progress

Inputs = Mapping[str, Any]
MODELS = (
    "mobilenet_v2",
    "resnet18",
    "convnext_tiny",
    "vit_base",
    "bert_base",
    "gpt2",
    "llama_small",
    "bert_tiny_dynamic",
    "if_branches",
    "loop_recurrence",
)
# The largest error of ONNX Runtime's results, relative to the captured ones.
_TOLERANCE = 1e-3
# The number of inputs tried in order to run kernels in all branches.
_SEEDS = 8


@dataclass
class Tally:
    """The number of attempts and of matches with the captured values, and the failures."""

    done: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, what: str, right: bool, why: object = "") -> None:
        """Counts one."""
        self.done += 1
        self.right += right
        if not right:
            self.wrong.append(f"{what}: {why}")

    def __str__(self) -> str:
        return f"{self.right}/{self.done}"


@dataclass
class Proof:
    """The results for one model. `idle` are kernels in branches that no input took."""

    model: str
    layers: int = 0
    kernels: Tally = field(default_factory=Tally)
    nodes: Tally = field(default_factory=Tally)
    ranges: Tally = field(default_factory=Tally)
    as_text: Tally = field(default_factory=Tally)
    as_onnx: Tally = field(default_factory=Tally)
    runtime: Tally = field(default_factory=Tally)
    optimized: Tally = field(default_factory=Tally)
    parts: Tally = field(default_factory=Tally)
    sequence: Tally = field(default_factory=Tally)
    idle: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """All counts, in the order of the table's columns."""
        return (
            self.kernels,
            self.nodes,
            self.ranges,
            self.as_text,
            self.as_onnx,
            self.runtime,
            self.optimized,
            self.parts,
            self.sequence,
        )


def prove(model: str, ranges: int, each: int, seed: int = 0) -> Proof:
    """Returns the results for a model of the zoo: all kernels, `ranges` ranges (every `each`-th in
    all forms), and a partition.
    """
    start = time.perf_counter()
    proof = Proof(model)
    drawn = random.Random(f"{model} {seed}")
    _kernels(proof, drawn)
    _ranges(proof, drawn, ranges, each)
    _partition(proof, drawn)
    proof.seconds = time.perf_counter() - start
    return proof


def _kernels(proof: Proof, drawn: random.Random) -> None:
    compiled = clew.compile(
        zoo.path(proof.model),
        passes=clew.Passes(instruments=[Unkept()]),
        diagnostics=clew.Diagnostics(trace=False),
    )
    seen: set[str] = set()
    program = _program(compiled, zoo.inputs(proof.model))
    for seed in range(_SEEDS):
        if len(seen) == len(program.names):
            break
        program = _program(compiled, zoo.inputs(proof.model, seed))
        for name, part in program.kernels().items():
            if name not in seen:
                seen.add(name)
                _kernel(proof, program, name, part)
    proof.idle = [n for n in program.names if n not in seen]
    count = len(program.nodes)
    computing = [n for n, node in enumerate(program.nodes) if node.op not in ("input", "param")]
    for _ in range(min(10, len(computing))):
        begin = drawn.choice(computing)
        end = drawn.randrange(begin, count) + 1
        report = program.range(begin, end).check()
        proof.nodes.note(f"nodes {begin}:{end}", report.passed, report)


def _program(compiled: clew.CompiledModel, inputs: Inputs) -> FusedProgram:
    return FusedProgram(compiled, [inputs[n] for n in compiled.input_names])


def _kernel(proof: Proof, program: FusedProgram, name: str, part: clew.Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        part.save(Path(folder) / "kernel.txt")
        alone = clew.load_part(Path(folder) / "kernel.txt")
    report = alone.check()
    keys = [use.source.key for use in alone.compile().build.uses]
    same = keys == [program.names[name].source.key]
    proof.kernels.note(name, report.passed and same, report if same else "another kernel")


def _ranges(proof: Proof, drawn: random.Random, count: int, each: int) -> None:
    path = zoo.path(proof.model)
    layers = ModuleGraph(clew.load(path)).layers
    proof.layers = len(layers.names)
    pairs = []
    for _ in range(count):
        first = drawn.choice([n for n in range(len(layers.names)) if n not in layers.fixed])
        last = drawn.choice(sorted(layers.after([first])))
        pairs.append((layers.names[first], layers.names[last]))
    parts = extract_ranges(path, pairs, inputs=zoo.inputs(proof.model))
    for number, part in enumerate(parts):
        report = part.check()
        proof.ranges.note(part.name, report.passed, report)
        if number % each == 0:
            _forms(proof, part)
            report = part.check(opt_level=3)
            proof.optimized.note(part.name, report.passed, report)


def _forms(proof: Proof, part: clew.Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for tally, suffix in ((proof.as_text, "txt"), (proof.as_onnx, "onnx")):
            file = Path(folder) / f"part.{suffix}"
            part.save(file)
            written = clew.load_part(file)
            report = written.check()
            tally.note(f"{part.name} .{suffix}", report.passed, report)
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        found = session.run([*written.outputs], dict(written.inputs))
        pairs = zip(found, written.outputs.values(), strict=True)
        worst = max(relative_error(value, wanted) for value, wanted in pairs)
        proof.runtime.note(part.name, worst < _TOLERANCE, f"{worst:.1e} from ONNX Runtime's")


def _partition(proof: Proof, drawn: random.Random) -> None:
    path = zoo.path(proof.model)
    layers = ModuleGraph(clew.load(path)).layers
    order = [n for n in range(len(layers.names)) if n not in layers.fixed]
    at: list[str] = []
    have: frozenset[int] = frozenset()
    for number in sorted(drawn.sample(order, min(3, len(order)))):
        if number not in have:
            at.append(layers.names[number])
            have |= layers.before([number])
    made = clew.partition(path, at=at, inputs=zoo.inputs(proof.model))
    for part in made.parts:
        report = part.check()
        proof.parts.note(part.name, report.passed, report)
    for options in ({}, {"opt_level": 3}):
        report = made.check(**options)
        proof.sequence.note(f"{options}", report.passed, report)


def table(proofs: list[Proof]) -> Table:
    """Returns the table of results."""
    made = Table(box=None, pad_edge=False)
    made.add_column("model")
    heads = (
        "layers",
        "kernels",
        "node ranges",
        "layer ranges",
        "text",
        "ONNX",
        "ORT",
        "opt level 3",
    )
    for name in (*heads, "parts", "in sequence", "s"):
        made.add_column(name, justify="right")
    for proof in proofs:
        counts = [str(tally) for tally in proof.tallies]
        made.add_row(proof.model, str(proof.layers), *counts, f"{proof.seconds:.0f}")
    return made


def complaints(proofs: list[Proof]) -> Iterator[str]:
    """Yields the failures."""
    for proof in proofs:
        for tally in proof.tallies:
            yield from (f"{proof.model}: {what}" for what in tally.wrong)


def main(
    models: Annotated[str, typer.Option(help="Names in the zoo, with commas.")] = ",".join(MODELS),
    ranges: Annotated[int, typer.Option(help="Random ranges of layers per model.")] = 50,
    each: Annotated[int, typer.Option(help="Test every n-th of these in all forms.")] = 5,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Checks that parts run alone as they do in the whole model."""
    proofs = []
    for name in models.split(","):
        with progress.status(name):
            proofs.append(prove(name, ranges, each, seed))
        counts = ", ".join(map(str, proofs[-1].tallies))
        progress.print(f"{name}: {counts} in {proofs[-1].seconds:.0f} s", highlight=False)
    console.print(table(proofs))
    for proof in proofs:
        if proof.idle:
            console.print(f"{proof.model}: in branches never taken: {', '.join(proof.idle)}")
    wrong = list(complaints(proofs))
    for text in wrong:
        console.print(text, markup=False)
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
