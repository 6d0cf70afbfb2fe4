"""`clew doctor`: shows what an installation has, and checks that it works."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any, Final

import typer
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli.output import emit_json, progress, stdout
from clew.support.errors import ClewError
from clew.support.folders import make_private
from clew.support.settings import settings, usable_cpus
from clew.support.shown import counted
from clew.support.tables import table
from clew.support.writing import write_bytes

EXTRAS: Final = {
    "profile": "profiles as data frames and Parquet files",
    "predict": "predictions learned from measured kernels",
    "tune": "tuning on the workers of a scheduler",
    "map": "models over Parquet files",
    "language": "texts for language models",
    "image": "images decoded inside models",
    "text": "regular expressions inside models",
    "torch": "PyTorch modules, and clew as a backend of torch.compile",
    "onnxruntime": "ONNX Runtime as a backend and for comparisons",
    "openvino": "OpenVINO as a backend",
    "docs": "the documentation, for clew docs",
}
"""What each extra of the package adds."""

_NETWORK: Final = """clew 1
def @main(
  %x: f32[2, 8, 17, 19],
  %w: f32[24, 8, 3, 3],
  %v: f32[40, 24]
) -> (f32[2, 40],) with outputs=["y"] {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1])  // conv:Conv#0
  %1 = nn.relu(%0)  // relu:Relu#1
  %2 = mean(%1, axes=[2, 3], keepdims=false)  // pool:ReduceMean#2
  %3 = nn.dense(%2, %v)  // head:MatMul#3
  %4 = nn.softmax(%3)  // soft:Softmax#4
  %5 = (%4,)
  return %5
}
"""
_TOLERANCE: Final = 1e-5  # of probabilities, in f32


@dataclass(frozen=True)
class Check:
    """One check: its result and, if it failed, what to do."""

    name: str
    passed: bool
    found: str
    hint: str = ""


@dataclass(frozen=True)
class Extra:
    """An extra of the package: what it adds, and the packages that it lacks."""

    name: str
    adds: str
    missing: tuple[str, ...]


def doctor(json: opt.Json = False) -> None:
    """Check the installation: machine, folders, versions, extras, and a self-test.

    The self-test compiles and runs a small network in a few seconds. The exit code is 1 if a check
    fails.
    """
    with progress("checking") as say:
        done = list(_checks(say))
    extras, packages = _extras(), dict(_packages())
    if json:
        emit_json(
            {
                "clew": clew.__version__,
                "python": platform.python_version(),
                "system": platform.platform(),
                "packages": packages,
                "checks": [asdict(each) for each in done],
                "extras": [asdict(each) for each in extras],
            }
        )
    else:
        _show(done, extras, packages)
    if not all(each.passed for each in done):
        raise typer.Exit(1)


def _checks(say: Callable[[str], None]) -> Iterator[Check]:
    for name, check in _CHECKS.items():
        say(name)
        try:
            yield Check(name, True, check())
        except ClewError as error:
            yield Check(name, False, f"[{error.code}] {error.message}", error.hint or "")
        except OSError as error:
            yield Check(name, False, str(error), "check the folder's owner and free space")
        except Exception as error:  # a broken installation may fail in any way
            yield Check(name, False, f"{type(error).__name__}: {error}", _REINSTALL)


def _machine() -> str:
    # `--help` must not import the compiler.
    from clew.cli.machine import facts  # noqa: PLC0415
    from clew.machine.target import target_of  # noqa: PLC0415

    here = target_of("cpu")
    units = "; ".join(f"{name}: {text}" for name, text in facts(here))
    return f"{here.cpu}, {counted(usable_cpus(), 'CPU')}; {units}"


def _cache() -> str:
    from clew.runtime.cache import default_cache  # noqa: PLC0415

    chosen = settings()
    cache = default_cache()  # warns, with the reason, of a folder that it cannot use
    if cache.root is None:
        if chosen.cache_enabled:
            raise OSError(f"{chosen.cache_dir} cannot be used")
        return "switched off"
    _try_to_write(cache.root)
    stats = cache.stats()
    sizes = f"{stats.size_bytes / 2**20:.1f} of {cache.limit_bytes / 2**20:.0f} MiB"
    return f"{cache.root}: {sizes}, {counted(stats.entries, 'file')}"


def _tuning() -> str:
    place = settings().tuning
    return f"{place}{'' if os.path.exists(place) else ' (none yet)'}"


def _try_to_write(folder: Path) -> None:
    make_private(folder)
    trial = folder / ".doctor"
    write_bytes(trial, b"clew")
    trial.unlink()


def _self_test() -> str:
    import numpy as np  # noqa: PLC0415

    from clew.ir.interpret import interpret  # noqa: PLC0415

    start = time.perf_counter()
    module = clew.parse(_NETWORK)
    worst, kernels, traced = 0.0, 0, 0
    for threads in sorted({1, usable_cpus()}):
        compiled = clew.compile(module, threads=threads, cache=False, tuned=None)
        given = dict(zip(compiled.input_names, compiled.drawn({}, seed=threads), strict=True))
        error = np.abs(compiled.run(given)["y"] - interpret(module, given)["y"])
        worst = max(worst, float(error.max()))
        kernels, traced = len(compiled.kernels), len(compiled.trace.layers)
    if not worst <= _TOLERANCE:  # NaN as well
        raise ArithmeticError(f"the network's result has an error of {worst:.2g}")
    seconds = time.perf_counter() - start
    about = f"{counted(kernels, 'kernel')}, {counted(traced, 'layer')} traced"
    return f"compiled and ran in {seconds:.1f} s: {about}, largest error {worst:.1e}"


_REINSTALL: Final = "reinstall clew into an empty environment"
_CHECKS: Final[dict[str, Callable[[], str]]] = {
    "machine": _machine,
    "cache": _cache,
    "tuning": _tuning,
    "self-test": _self_test,
}


def _required() -> Iterator[tuple[str, str]]:
    """Yields each package that clew or one of its extras needs, with the extra's name or ""."""
    try:
        needs = metadata("clew").get_all("Requires-Dist") or []
    except PackageNotFoundError:  # a checkout on the path
        return
    for need in needs:
        name = re.match(r"[\w.-]+", need)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", need)
        if name:
            yield name[0], extra[1] if extra else ""


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[tuple[str, str]]:
    for name, extra in _required():
        if not extra:
            yield name, _installed(name) or "missing"


def _extras() -> list[Extra]:
    needed: dict[str, list[str]] = {}
    for name, extra in _required():
        needed.setdefault(extra, []).append(name)
    return [
        Extra(name, adds, tuple(each for each in needed[name] if _installed(each) is None))
        for name, adds in EXTRAS.items()
        if name in needed
    ]


def _show(done: list[Check], extras: list[Extra], packages: dict[str, Any]) -> None:
    out = stdout()
    python = f"Python {platform.python_version()} ({sys.executable})"
    out.print(Text(f"clew {clew.__version__}, {python}, {platform.platform()}"))
    out.print(Text("  " + ", ".join(f"{name} {found}" for name, found in packages.items())))
    for check in done:
        mark = Text("ok    ", "green") if check.passed else Text("FAILED", "bold red")
        out.print(Text.assemble(mark, f"  {check.name}: {check.found}"))
        if check.hint:
            out.print(Text(f"        hint: {check.hint}"))
    made = table("extra", "adds", "state")
    for extra in extras:
        short = f"pip install 'clew[{extra.name}]' (needs {', '.join(extra.missing)})"
        made.add_row(extra.name, extra.adds, Text(short if extra.missing else "installed"))
    if extras:
        out.print(made)
