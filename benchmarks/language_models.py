"""Times prompts and tokens of language models: GGUF files beside llama.cpp, ONNX folders beside
ONNX Runtime.

    python benchmarks/language_models.py model.gguf --context 128,1024 --results language-models
    python benchmarks/language_models.py onnx-folder/ --precision f32,auto

llama.cpp is called through `llama-cpp-python`; an engine that is not installed is left out, and
a line says so. Engines take turns at the same token ids. A prompt is read into empty caches, for
the logits of its last token; then each call reads one more token. With one thread, times are those
of the calling thread. The difference is that of the logits, relative to the largest one of clew
with the first precision.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

import numpy as np
import typer

import clew
from clew.generation.decoder import Decoder
from harness import results as written
from harness.report import console, markdown

Array: TypeAlias = "np.ndarray[Any, Any]"

COLUMNS: Final = (
    "model", "context", "engine", "prompt, ms", "ratio", "token, ms", "ratio ", "difference",
)  # fmt: skip
_WARMUP: Final = 2


class Engine(Protocol):
    """A model that reads tokens. Each call returns the logits after the last one."""

    def read(self, ids: Array) -> Array:
        """Reads a prompt into empty caches."""
        ...

    def step(self, token: int) -> Array:
        """Reads one more token."""
        ...


class Clew:
    """The model as clew compiles it."""

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        self.model = clew.language_model(path, threads=threads, precision=precision)
        self._decoder = Decoder(self.model.wiring)

    def read(self, ids: Array) -> Array:
        """Reads a prompt into empty caches."""
        self._decoder.rewind(0)
        logits: Array = self._decoder.read(ids[None])[0]
        return logits

    def step(self, token: int) -> Array:
        """Reads one more token."""
        logits: Array = self._decoder.feed(np.array([[token]]), 1)[0, 0]
        return logits


class LlamaCpp:
    """The model in llama.cpp."""

    def __init__(self, path: Path, threads: int, room: int) -> None:
        import llama_cpp  # noqa: PLC0415 - optional

        self._llama = llama_cpp.Llama(
            str(path), n_ctx=room, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._logits = llama_cpp.llama_get_logits_ith

    def read(self, ids: Array) -> Array:
        """Reads a prompt into empty caches."""
        self._llama.reset()
        return self._read(ids.tolist())

    def step(self, token: int) -> Array:
        """Reads one more token."""
        return self._read([token])

    def _read(self, ids: list[int]) -> Array:
        self._llama.eval(ids)
        found = self._logits(self._llama.ctx, -1)
        return np.ctypeslib.as_array(found, (self._llama.n_vocab(),)).copy()


class OnnxRuntime:
    """An ONNX file with caches, which outputs of a call bring to the next one."""

    def __init__(self, path: Path, wiring: Any, threads: int) -> None:
        import onnxruntime  # noqa: PLC0415 - optional

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._wiring = wiring
        self._first = wiring.model.session()
        self._states: dict[str, Array] = {}
        self._past = 0

    def read(self, ids: Array) -> Array:
        """Reads a prompt into empty caches."""
        self._past, self._states = 0, {}
        for given in self._session.get_inputs():
            if given.name in self._first.state_names:
                axis = self._first.growing_axes.get(given.name, -1)
                shape = [
                    size if isinstance(size, int) else int(n != axis)
                    for n, size in enumerate(given.shape)
                ]
                dtype = np.float16 if "float16" in given.type else np.float32
                self._states[given.name] = np.zeros(shape, dtype)
        return self._read(ids)

    def step(self, token: int) -> Array:
        """Reads one more token."""
        return self._read(np.array([token]))

    def _read(self, ids: Array) -> Array:
        given = self._wiring.inputs(ids[None], self._past, [0], len(ids) - 1)
        names = [o.name for o in self._session.get_outputs()]
        results = self._session.run(None, {**given, **self._states})
        found = dict(zip(names, results, strict=True))
        self._past += len(ids)
        self._states = {n: found[n.replace("past_key_values", "present")] for n in self._states}
        logits: Array = found[self._wiring.logits][0, -1]
        return logits


def engines_of(
    path: Path, threads: int, precisions: Sequence[str], room: int
) -> tuple[dict[str, Engine], int]:
    """Returns the engines that can run a model, and the size of its vocabulary."""
    own = {f"clew, {p}": Clew(path, threads, p) for p in precisions}
    wiring = next(iter(own.values())).model.wiring
    engines: dict[str, Engine] = {**own}
    name, package = ("llama.cpp", "llama_cpp") if path.suffix == ".gguf" else _RUNTIME
    file = path if path.is_file() else _onnx_file(path)
    if importlib.util.find_spec(package) is None:
        console.print(f"{name} is left out: {package} is not installed")
    elif name == "llama.cpp":
        engines[name] = LlamaCpp(path, threads, room)
    elif file is not None:
        engines[name] = OnnxRuntime(file, wiring, threads)
    return engines, wiring.vocabulary or 1


_RUNTIME: Final = ("ONNX Runtime", "onnxruntime")


def _onnx_file(folder: Path) -> Path | None:
    files = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((f for f in files if f.exists()), None)


def times_of(
    engines: dict[str, Engine],
    ids: Array,
    context: int,
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, tuple[list[float], list[float], float]]:
    """Returns the times of prompts and tokens in ms of each engine, and the largest difference of
    its logits from those of the first one.
    """
    prompts: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, list[float]] = {name: [] for name in engines}
    differences = dict.fromkeys(engines, 0.0)
    for number in range(rounds + 1):
        for name, engine in engines.items():
            _, span = _timed(clock, engine.read, ids[:context])
            if number:  # the first call prepares memory
                prompts[name].append(span)
    for number, token in enumerate(ids[context:].tolist()):
        expected: Array | None = None
        for name, engine in engines.items():
            logits, span = _timed(clock, engine.step, token)
            if number >= _WARMUP:
                tokens[name].append(span)
            expected = logits if expected is None else expected
            error = float(np.abs(logits - expected).max() / np.abs(expected).max())
            differences[name] = max(differences[name], error)
    return {name: (prompts[name], tokens[name], differences[name]) for name in engines}


def _timed(
    clock: Callable[[], float], call: Callable[[Any], Array], given: Any
) -> tuple[Array, float]:
    start = clock()
    found = call(given)
    return found, 1e3 * (clock() - start)


def rows_of(
    model: str, context: int, times: dict[str, tuple[list[float], list[float], float]]
) -> list[list[str]]:
    """Returns the lines of a context. A ratio is the time of the last engine over that of this one,
    if the last one is a peer.
    """
    rows, (*_, last) = [], times
    has_peer = not last.startswith("clew")
    for name, (prompts, tokens, difference) in times.items():
        cells = []
        for own, peer in ((prompts, times[last][0]), (tokens, times[last][1])):
            median = statistics.median(own)
            cells += [
                f"{median:.4g}",
                f"{statistics.median(peer) / median:.2f}" if has_peer else "",
            ]
        rows.append([model, str(context), name, *cells, f"{difference:.1e}"])
    return rows


def main(
    models: Annotated[list[Path], typer.Argument(help="GGUF files, or folders.")],
    context: Annotated[str, typer.Option(help="Tokens of prompts.")] = "128,1024",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    precision: Annotated[str, typer.Option(help="Precisions of clew.")] = "f32,auto",
    rounds: Annotated[int, typer.Option(help="Prompts of each engine.", min=1)] = 3,
    tokens: Annotated[int, typer.Option(help="Tokens after each prompt.", min=1)] = 24,
    section: Annotated[
        str,
        typer.Option("--results", help="Also write benchmarks/results/NAME.json.", metavar="NAME"),
    ] = "",
) -> None:
    """Prints the times of prompts and tokens, and how far the logits differ."""
    contexts = [int(c) for c in context.split(",")]
    clock = time.thread_time if threads == 1 else time.perf_counter
    rows = []
    for path in models:
        room = max(contexts) + tokens + _WARMUP
        engines, vocabulary = engines_of(path, threads, precision.split(","), room)
        ids = np.random.default_rng(0).integers(0, vocabulary, room)
        for count in contexts:
            part = ids[: count + tokens + _WARMUP]
            rows += rows_of(path.stem, count, times_of(engines, part, count, rounds, clock))
    console.print(markdown(COLUMNS, rows, numbers=3), soft_wrap=True)
    if section:
        note = f"{'Thread CPU time' if threads == 1 else 'Time'}, medians, threads: {threads}."
        written.record(section, [written.Table("", COLUMNS, rows, 3, note)])


if __name__ == "__main__":
    typer.run(main)
