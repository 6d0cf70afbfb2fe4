"""PyTorch models under `torch.compile`: clew, Inductor, OpenVINO and eager.

    taskset -c 0 python benchmarks/torch_compile.py calls --models bert_small,resnet18
    python benchmarks/torch_compile.py first            first calls, in a new process each
    taskset -c 0 python benchmarks/torch_compile.py overhead
    taskset -c 0 python benchmarks/torch_compile.py lengths

The networks are those of `harness/torch_networks.py`, with random weights. Every measured call has
new values.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, Final
from unittest.mock import patch

import torch
import typer
from torch import nn

from clew.profile.interleave import interleaved_ns
from harness.report import fill, markdown, progress
from harness.torch_networks import MODELS, sentence_encoder


def _stored(module: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """Returns a function that computes nothing: it returns the graph's results for `args`."""
    results = module(*args)
    return lambda *_: results


ENGINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "clew": {"backend": "clew"},
    "inductor": {"backend": "inductor", "options": {"freezing": True}},
    "max-autotune": {"backend": "inductor", "options": {"freezing": True, "max_autotune": True}},
    "openvino": {"backend": "openvino"},
    "none": {"backend": _stored},
}
_ALL: Final = ",".join(MODELS)
_TIMEOUT = 600.0  # seconds of one first call

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Names = Annotated[str, typer.Option(help="Names.")]
Threads = Annotated[int, typer.Option(help="Threads of each engine.")]
Rows = Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")]
Document = Annotated[
    Path | None, typer.Option("--markdown", help="Also put the table into this document.")
]


def _compiled(engine: str, network: nn.Module, **options: Any) -> Callable[..., Any]:
    own = copy.deepcopy(network)
    call: Callable[..., Any] = own
    if engine == "eager":
        return call
    # For one code object, torch would keep all engines' code, and test the guards of each.
    kind, plain = type(own), type(own).forward
    forward = FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__,
        plain.__closure__,
    )  # fmt: skip
    own.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    call = torch.compile(own, **ENGINES[engine], **options)
    return call


def _show(columns: Sequence[str], lines: Sequence[Sequence[str]], section: str,
          document: Path | None) -> None:  # fmt: skip
    text = markdown(columns, lines)
    print(text)
    if document is not None:
        fill(document, section, text)


def _kept(rows: Mapping[str, Any], into: Path | None) -> None:
    if into is not None:
        into.write_text(json.dumps(rows, indent=1) + "\n")


# --- calls ----------------------------------------------------------------------------------------


def _measured(name: str, engines: Sequence[str], seconds: float) -> dict[str, Any]:
    """Returns the times of each engine for a model: best and median call in ms, and the largest
    difference from eager, relative to eager's largest value.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    network, draw = MODELS[name]()
    network.eval()
    row: dict[str, Any] = {}
    calls: dict[str, Callable[..., Any]] = {}
    first = draw()
    wanted = network(*first.values())
    for engine in engines:
        progress.print(f"{name}, {engine}")
        try:
            call = _compiled(engine, network)
            found = call(*first.values())
        except Exception as error:  # of any type: an engine fails
            row[engine] = {"why": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        row[engine] = {"error": float((found - wanted).abs().max() / wanted.abs().max())}
        calls[engine] = call
    times: dict[str, list[float]] = {engine: [] for engine in calls}
    for call in calls.values():
        call(*draw().values())
    ends = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < ends:
        for engine, call in calls.items():
            inputs = [v.clone() for v in draw().values()]
            for _ in range(2):  # the first call refills the caches after the other engines
                began = time.perf_counter()
                call(*inputs)
                took = time.perf_counter() - began
            times[engine].append(1e3 * took)
    for engine, taken in times.items():
        row[engine] |= {"best": min(taken), "median": statistics.median(taken)}
    return row


@app.command()
def calls(
    models: Names = _ALL,
    engines: Names = "eager,clew,inductor,max-autotune,openvino",
    threads: Threads = 1,
    seconds: Annotated[float, typer.Option(help="Seconds for each engine and model.")] = 4.0,
    into: Rows = None,
    document: Document = None,
) -> None:
    """Times calls, alternately, and prints the best and the median of each engine."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    rows: dict[str, Any] = {}
    if into is not None and into.exists():
        rows = json.loads(into.read_text())
    names = engines.split(",")
    with torch.no_grad():
        for name in [n for n in models.split(",") if n]:
            rows[name] = _measured(name, names, seconds)
            _kept(rows, into)
    lines = []
    ratios: dict[str, list[float]] = {"fastest": [], "inductor": []}
    for name, row in rows.items():
        own = row.get("clew", {}).get("best")
        peers = {e: r["best"] for e, r in row.items() if e != "clew" and "best" in r}
        if not own or not peers:
            continue
        ratios["fastest"].append(min(peers.values()) / own)
        tuned = [best for e, best in peers.items() if e in ("inductor", "max-autotune")]
        ratios["inductor"].append(min(tuned) / own if tuned else float("nan"))
        cells = [_cell(row.get(engine)) for engine in names]
        lines.append([name, *cells, *(f"{r[-1]:.2f}" for r in ratios.values())])
    means = [f"{statistics.geometric_mean(r):.2f}" for r in ratios.values() if r]
    lines.append(["geometric mean", *("" for _ in names), *means])
    columns = ["model", *(f"{n}, ms" for n in names), "fastest peer ÷ clew", "Inductor ÷ clew"]
    _show(columns, lines, f"torch compile {threads}", document)


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    if "best" not in found:
        return "fails"
    return f"{found['best']:.2f}"


# --- first calls ----------------------------------------------------------------------------------


@app.command()
def first(
    models: Names = _ALL,
    engines: Names = "clew,inductor,max-autotune",
    threads: Threads = 1,
    free: Annotated[bool, typer.Option(help="Compile for free sizes (dynamic=True).")] = False,
    into: Rows = None,
    document: Document = None,
) -> None:
    """Times the first call of each engine, in s: in a new process with empty caches, and in a
    second one with the caches that the first has filled.
    """
    rows: dict[str, Any] = {}
    if into is not None and into.exists():
        rows = json.loads(into.read_text())
    names = engines.split(",")
    for name in [n for n in models.split(",") if n]:
        rows[name] = {engine: list(_firsts(name, engine, threads, free)) for engine in names}
        _kept(rows, into)
    lines = []
    for name, row in rows.items():
        cells = [" / ".join("fails" if s is None else f"{s:.1f}" for s in row[e]) for e in names]
        lines.append([name, *cells])
    columns = ["model", *(f"{n}: cold / second process, s" for n in names)]
    _show(columns, lines, "torch compile first", document)


def _firsts(name: str, engine: str, threads: int, free: bool) -> Iterator[float | None]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"CLEW_CACHE_DIR": f"{folder}/clew", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        command = [sys.executable, __file__, "first-call", name, engine, str(threads)]
        for _ in range(2):
            progress.print(f"{name}, {engine}")
            try:
                said = subprocess.run(
                    [*command, "--free"] if free else command, timeout=_TIMEOUT, check=True,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **caches},
                )  # fmt: skip
                yield float(said.stdout.split()[-1])
            except (subprocess.SubprocessError, ValueError):
                yield None


@app.command(hidden=True)
def first_call(model: str, engine: str, threads: int, free: bool = False) -> None:
    """Prints the seconds of the first call of a compiled model in this process."""
    torch.set_num_threads(threads)
    network, draw = MODELS[model]()
    inputs = draw().values()
    network.eval()
    with torch.no_grad():
        network(*inputs)
        call = _compiled(engine, network, dynamic=free or None)
        began = time.perf_counter()
        call(*inputs)
        print(time.perf_counter() - began)


# --- overhead -------------------------------------------------------------------------------------


class _Chain(nn.Module):  # type: ignore[misc]
    """Linear layers of width 8, so that a call has little to compute."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


@app.command()
def overhead(
    layers: Annotated[str, typer.Option(help="Numbers of linear layers.")] = "1,4,16,50",
    rounds: Annotated[int, typer.Option(help="Turns of each call.")] = 40,
    document: Document = None,
) -> None:
    """Times calls of tiny models in µs: the whole call, clew's program (what torch calls once its
    guards hold), the model's run on arrays, and what torch itself takes: a call whose backend
    returns a stored result.
    """
    torch.set_num_threads(1)
    lines = []
    for count in map(int, layers.split(",")):
        torch._dynamo.reset()
        network = _Chain(count).eval()
        x = torch.randn(1, 8)
        with torch.no_grad():
            ours, theirs = _compiled("clew", network), _compiled("inductor", network)
            idle = _compiled("none", network)
            ours(x), theirs(x), idle(x)
            program, taken = _as_called(lambda: ours(x))  # noqa: B023 - called in this turn
            array = x.numpy()
            run = program.compiled.run_checked
            times = interleaved_ns(
                {
                    "call": lambda: ours(x),  # noqa: B023
                    "program": lambda: program(*taken),  # noqa: B023
                    "run": lambda: run([array]),  # noqa: B023
                    "torch": lambda: idle(x),  # noqa: B023
                    "inductor": lambda: theirs(x),  # noqa: B023
                    "eager": lambda: network(x),  # noqa: B023
                },
                rounds,
                min_turn_s=0.01,
            )
        median = {name: statistics.median(spans) / 1e3 for name, spans in times.items()}
        shown = ("call", "program", "run", "torch", "inductor", "eager")
        cells = [f"{median[n]:.1f}" for n in shown]
        lines.append([str(count), *cells, f"{median['call'] - median['run']:.1f}"])
    columns = ["layers", "call, µs", "clew's program", "its run", "torch alone", "inductor",
               "eager", "call less run"]  # fmt: skip
    _show(columns, lines, "torch compile overhead", document)


def _as_called(call: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Returns the program that a call runs, and its arguments: weights and inputs."""
    from clew.torch import TorchProgram  # noqa: PLC0415 - the other commands run without it, too

    seen: list[Any] = []
    plain = TorchProgram.__call__

    def recorded(program: Any, *args: Any) -> Any:
        seen[:] = [program, list(args)]
        return plain(program, *args)

    with patch.object(TorchProgram, "__call__", recorded):
        call()
    return seen[0], seen[1]


# --- free lengths ---------------------------------------------------------------------------------


@app.command()
def lengths(
    count: Annotated[int, typer.Option(help="Calls, each of a random length.")] = 200,
    shortest: Annotated[int, typer.Option(help="Shortest length (two tokens are special).")] = 3,
    longest: int = 256,
    threads: Threads = 1,
) -> None:
    """Calls a sentence encoder with random lengths under `torch.compile(dynamic=True)`, and prints
    the number of graphs, how much longer the first call of a length takes than a repeated one, and
    the largest difference from eager.
    """
    import clew.torch  # noqa: PLC0415 - the other commands run without it, too

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, draw = sentence_encoder()
    network.eval()
    call = _compiled("clew", network, dynamic=True)
    chosen = torch.randint(shortest, longest + 1, (count,)).tolist()
    pauses, errors = [], []
    with torch.no_grad():
        for number, length in enumerate(chosen):
            inputs = draw(length)
            began = time.perf_counter()
            found = call(*inputs.values())
            took = time.perf_counter() - began
            again = min(_seconds(lambda: call(*inputs.values())) for _ in range(3))  # noqa: B023
            pauses.append(took - again)
            wanted = network(*inputs.values())
            errors.append(float((found - wanted).abs().max() / wanted.abs().max()))
            if number < 2:
                print(f"call {number + 1}, length {length}: {took:.2f} s")
    later = sorted(pauses[2:])
    print(
        f"{count} lengths of {shortest} to {longest}: {len(clew.torch.last())} graphs, largest "
        f"difference {max(errors):.1e}; first calls of a length less their repetition, after two: "
        f"median {1e3 * statistics.median(later):.2f} ms, longest "
        + ", ".join(f"{1e3 * pause:.2f}" for pause in later[:-4:-1])
        + " ms"
    )


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    app()
