"""Compiles one model in a separate process and prints the processor time of each stage as JSON.

`python -m harness.stages_child MODEL INPUTS FREE`, where INPUTS is an `.npz` file and FREE is 1 to
leave the model's sizes free. The cache is that of the environment.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

LEVELS: Final = {
    "plan": "schedules",
    "scheduled_nest": "schedules",
    "emitted": "emission",
}
"""Stages of the levels of a kernel (`KernelSource`); the other levels are `lowering`."""


class PassTimes:
    """An instrument that adds up the processor time of each pass."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._start = 0.0

    def before_pass(self, name: str, module: Any) -> None:
        """Starts the clock."""
        self._start = time.process_time()

    def after_pass(self, name: str, module: Any) -> None:
        """Stops the clock."""
        self.seconds[name] += time.process_time() - self._start


class LevelTimes:
    """Adds up the processor time of the levels of kernels, each without those that it reads."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._inner: list[float] = []

    def around(self, compute: Callable[[Any], Any], level: str) -> Callable[[Any], Any]:
        """Returns a function of a kernel source that also adds its time to that of a level."""

        def timed(source: Any) -> Any:
            start = time.process_time()
            self._inner.append(0.0)
            try:
                return compute(source)
            finally:
                spent = time.process_time() - start
                self.seconds[source.use, level] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        return timed


def main() -> None:
    """Prints {stage: s}, {pass: s} and, for each kernel, {name, stage: s}, and the peak memory."""
    path, inputs, is_free = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
    start = time.process_time()
    import clew  # noqa: PLC0415 - the import is timed, too

    _ = clew.load, clew.compile  # public names are imported when first used
    stages = {"imports": time.process_time() - start}
    found = _compiled(path, inputs, is_free, stages)
    print(json.dumps({"stages": stages, **found}))


def _compiled(path: str, file: str, is_free: bool, stages: dict[str, float]) -> dict[str, Any]:
    # Imported after the clock of `main` has seen clew's own imports.
    import numpy as np  # noqa: PLC0415

    import clew  # noqa: PLC0415
    from clew.backends.cpu.lowering import KernelSource  # noqa: PLC0415
    from clew.codegen import objects  # noqa: PLC0415
    from clew.support.lazy import cached_property  # noqa: PLC0415

    levels, passes, texts = LevelTimes(), PassTimes(), []
    for name, level in vars(KernelSource).items():
        if isinstance(level, cached_property):
            level._function = levels.around(level._function, LEVELS.get(name, "lowering"))
    given = objects.ObjectCompiler.submit

    def submit(self: Any, text: str, target: Any, pipeline: str = "quick") -> Any:
        texts.append((text, target, pipeline))
        return given(self, text, target, pipeline)

    objects.ObjectCompiler.submit = submit  # type: ignore[method-assign]
    values = dict(np.load(file))
    start = time.process_time()
    model = clew.load(path, inputs=None if is_free else {n: v.shape for n, v in values.items()})
    stages["import of the file"] = time.process_time() - start
    start = time.process_time()
    compiled = clew.compile(model, passes=clew.Passes(instruments=[passes]))
    whole = time.process_time() - start
    start = time.process_time()
    compiled.run(values)
    stages["first call"] = time.process_time() - start
    rows: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (use, stage), seconds in levels.seconds.items():
        rows[use][stage] += seconds
    stages["passes"] = sum(passes.seconds.values())
    for stage in ("lowering", "schedules", "emission"):
        stages[stage] = sum(row[stage] for row in rows.values())
    counted = ("passes", "lowering", "schedules", "emission")
    stages["other"] = whole - sum(stages[name] for name in counted)
    objects.shared_compiler().close()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    stages["workers"] = children.ru_utime + children.ru_stime
    return {
        "passes": passes.seconds,
        "kernels": [{"kernel": use, **row} for use, row in rows.items() if row["emission"]],
        "llvm": _llvm(texts),
        "peak_bytes": peak_bytes,
    }


def _llvm(texts: list[tuple[str, Any, str]]) -> dict[str, float]:
    """Returns the processor time of LLVM's steps and the bytes of text, compiled here once more."""
    from llvmlite import binding as llvm  # noqa: PLC0415

    from clew.codegen import worker  # noqa: PLC0415

    worker.configure_llvm()
    spent: defaultdict[str, float] = defaultdict(float)
    for text, target, pipeline in texts:
        times = [time.process_time()]
        machine = worker._target_machine(target.triple, target.cpu, target.features)
        module = llvm.parse_assembly(text)
        times.append(time.process_time())
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
        times.append(time.process_time())
        worker._optimize(module, machine, pipeline)
        worker._reduce_strength(pipeline != "quick")
        times.append(time.process_time())
        machine.emit_object(module)
        times.append(time.process_time())
        module.close()
        steps = ("parse", "verify", "optimize", "code generation")
        for step, (before, after) in zip(steps, pairwise(times), strict=True):
            spent[step] += after - before
        spent["text_bytes"] += len(text)
    return spent


if __name__ == "__main__":
    main()
