"""Calls of PyTorch models under `torch.compile`: clew, Inductor, OpenVINO and eager, alternately.

    taskset -c 0 python benchmarks/torch_compile.py --models bert_small,resnet18 --threads 1

Each model is called with new values at every call. A row holds the best and the median call of each
engine, and the seconds of its first call, which compiles. Weights are drawn.
"""

from __future__ import annotations

import copy
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from torch import nn

from harness.report import fill, markdown, progress

Inputs = Mapping[str, Any]


# --- models ---------------------------------------------------------------------------------------


class _Taken(nn.Module):  # type: ignore[misc]
    """A network of the transformers library, reduced to one result."""

    def __init__(self, network: nn.Module, result: str) -> None:
        super().__init__()
        self.network, self.result = network, result

    def forward(self, input_ids: torch.Tensor) -> Any:
        return getattr(self.network(input_ids=input_ids), self.result)


def _bert(hidden: int, layers: int, length: int) -> tuple[nn.Module, Callable[[], Inputs]]:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.BertConfig(
        vocab_size=8_000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
    )
    network = _Taken(transformers.BertModel(config), "last_hidden_state")
    return network, lambda: {"input_ids": torch.randint(0, 8_000, (1, length))}


def _llama(length: int) -> tuple[nn.Module, Callable[[], Inputs]]:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.LlamaConfig(
        vocab_size=4_000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    network = _Taken(transformers.LlamaForCausalLM(config), "logits")
    return network, lambda: {"input_ids": torch.randint(0, 4_000, (1, length))}


class _Block(nn.Module):  # type: ignore[misc]
    """A residual block of two convolutions."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down: nn.Module = nn.Identity()
        if stride > 1 or channels != out:
            self.down = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.down(x))


def _resnet18() -> tuple[nn.Module, Callable[[], Inputs]]:
    stages = [_Block(64, 64, 1), _Block(64, 64, 1)]
    for out in (128, 256, 512):
        stages += [_Block(out // 2, out, 2), _Block(out, out, 1)]
    network = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip
    return network, lambda: {"input": torch.randn(1, 3, 224, 224)}


def _vit() -> tuple[nn.Module, Callable[[], Inputs]]:
    import transformers  # noqa: PLC0415 - optional

    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768
    )

    class Pooled(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = transformers.ViTModel(config)

        def forward(self, pixels: torch.Tensor) -> Any:
            return self.network(pixel_values=pixels).last_hidden_state

    return Pooled(), lambda: {"pixels": torch.randn(1, 3, 224, 224)}


def _mlp() -> tuple[nn.Module, Callable[[], Inputs]]:
    widths = (256, 512, 512, 256, 10)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers), lambda: {"input": torch.randn(32, 256)}


MODELS: Final[Mapping[str, Callable[[], tuple[nn.Module, Callable[[], Inputs]]]]] = {
    "mlp": _mlp,
    "bert_small": lambda: _bert(256, 4, 128),
    "bert_short": lambda: _bert(256, 4, 12),
    "minilm_like": lambda: _bert(384, 6, 64),
    "llama_small": lambda: _llama(64),
    "vit_small": _vit,
    "resnet18": _resnet18,
}
ENGINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "clew": {"backend": "clew"},
    "inductor": {"backend": "inductor", "options": {"freezing": True}},
    "max-autotune": {"backend": "inductor", "options": {"freezing": True, "max_autotune": True}},
    "openvino": {"backend": "openvino"},
}


# --- measuring ------------------------------------------------------------------------------------


def _calls(engine: str, network: nn.Module) -> Callable[..., Any]:
    own = copy.deepcopy(network)
    if engine == "eager":
        return own
    compiled: Callable[..., Any] = torch.compile(own, **ENGINES[engine])
    return compiled


def _measured(name: str, engines: Sequence[str], seconds: float) -> dict[str, Any]:
    """Returns the times of each engine for a model: first call in s, best and median call in ms,
    and the largest difference from eager, relative to eager's largest value.
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
            call = _calls(engine, network)
            began = time.perf_counter()
            found = call(*first.values())
            took = time.perf_counter() - began
        except Exception as error:  # of any type: an engine fails
            row[engine] = {"why": f"{type(error).__name__}: {str(error)[:200]}"}
            continue
        differs = float((found - wanted).abs().max() / wanted.abs().max())
        row[engine] = {"first": took, "error": differs}
        calls[engine] = call
    times: dict[str, list[float]] = {engine: [] for engine in calls}
    for call in calls.values():
        call(*draw().values())
    ends = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < ends:
        for engine, call in calls.items():
            inputs = [v.clone() for v in draw().values()]
            for _ in range(2):  # the first of both fills the caches that others emptied
                began = time.perf_counter()
                call(*inputs)
                took = time.perf_counter() - began
            times[engine].append(1e3 * took)
    for engine, found in times.items():
        row[engine] |= {"best": min(found), "median": statistics.median(found)}
    return row


def main(
    models: Annotated[str, typer.Option(help="Names.")] = ",".join(MODELS),
    engines: Annotated[str, typer.Option(help="Names.")] = "eager,clew,inductor,openvino",
    threads: Annotated[int, typer.Option(help="Threads of each engine.")] = 1,
    seconds: Annotated[float, typer.Option(help="Seconds for each engine and model.")] = 4.0,
    into: Annotated[Path | None, typer.Option("--json", help="Also write the rows here.")] = None,
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the table into this document.")
    ] = None,
) -> None:
    """Times calls of models under `torch.compile` and prints a table."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    rows: dict[str, Any] = {}
    if into is not None and into.exists():
        rows = json.loads(into.read_text())
    names = engines.split(",")
    with torch.no_grad():
        for name in [n for n in models.split(",") if n]:
            rows[name] = _measured(name, names, seconds)
            if into is not None:
                into.write_text(json.dumps(rows, indent=1))
    lines = []
    for name, row in rows.items():
        peers = [r["best"] for e, r in row.items() if e != "clew" and "best" in r]
        own = row.get("clew", {}).get("best")
        ratio = f"{min(peers) / own:.2f}" if own and peers else "–"
        cells = [_cell(row.get(engine)) for engine in names]
        lines.append([name, *cells, ratio])
    columns = ["model", *(f"{n}, ms (first call, s)" for n in names), "fastest peer ÷ clew"]
    text = markdown(columns, lines)
    print(text)
    if document is not None:
        fill(document, f"torch compile {threads}", text)


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    if "best" not in found:
        return "fails"
    return f"{found['best']:.2f} ({found['first']:.1f})"


if __name__ == "__main__":
    typer.run(main)
