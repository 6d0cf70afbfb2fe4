"""The result of a bisection."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.bisection.reduced import Reduced, plain
from clew.bisection.reproducer import write
from clew.support.shown import Shown

KINDS: Final = {
    "none": "the result is correct",
    "import": "the import is wrong: the layer's converter or operator differs from the model",
    "pass": "a graph pass changed a value",
    "precision": "a value was rounded, in a narrower dtype or another order",
    "compute": "an operator's tensor form differs from its reference",
    "schedule": "the loop nest is right before a schedule step and wrong after it",
    "codegen": "the loop nest is right, but its machine code is wrong",
    "memory": "kernels are right alone, but read overwritten values",
    "threads": "results change with the number of threads or from run to run",
    "backend": "another backend computes a region of the graph wrongly",
    "host": "a step between kernels differs from its operator",
    "unknown": "the result is wrong, but every part of it is right on its own operands",
}


@dataclass(frozen=True)
class Culprit:
    """A node whose value differs from the one its right operands give.

    `error` is relative to the largest magnitude; `due` is the error that rounding may cause.
    """

    layers: tuple[str, ...]
    node: str
    error: float
    due: float


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """The place where a result goes wrong.

    `kind` is one of `KINDS`. `error` is that of the outputs against the reference, relative to the
    largest magnitude of each; more than `tolerance` is wrong. The other fields are set if they
    apply: the stage and its pass, the node before and after it, the model's layers, the kernel (or
    the region, with its `backend`) with its operators, and the step of its schedule. `local_error`
    is the culprit's error on right operands; `due` is the error that rounding may cause there.
    `culprits` are further places, sorted by error if the kind is `precision`. `evidence` lists the
    comparisons, in order.
    """

    kind: str
    error: float
    tolerance: float
    reference: str
    summary: str
    pass_name: str = ""
    stage: int | None = None
    node: str = ""
    old_node: str = ""
    layers: tuple[str, ...] = ()
    kernel: str = ""
    backend: str = ""
    ops: tuple[str, ...] = ()
    step: str = ""
    local_error: float | None = None
    due: float | None = None
    culprits: tuple[Culprit, ...] = ()
    evidence: tuple[str, ...] = ()
    failed_runs: int = 0
    runs: int = 0
    reduced: Reduced | None = field(default=None, repr=False)

    def _about(self) -> str:
        return f"{self.kind}: {self.summary}"

    @property
    def found(self) -> bool:
        """Whether something is wrong and its place is known."""
        return self.kind not in ("none", "unknown")

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.summary}"]
        lines += [f"  {name:12}{text}" for name, text in self.facts().items()]
        return "\n".join(lines)

    def facts(self) -> dict[str, str]:
        """Returns the known facts, as text by name."""
        found: dict[str, str] = {}
        if self.runs:
            outputs = f"{self.error:.2g} off {self.reference} (at most {self.tolerance:.2g})"
            flaky = 0 < self.failed_runs < self.runs
            some = f", in {self.failed_runs} of {self.runs} runs" if flaky else ""
            found["outputs"] = f"{outputs}{some}"
        if self.pass_name:
            stage = f", stage {self.stage}" if self.stage is not None else ""
            found["pass"] = f"{self.pass_name}{stage}"
        texts = {
            "before": self.old_node,
            "after" if self.old_node else "node": self.node,
            "layers": ", ".join(self.layers),
            "region" if self.backend else "kernel": self.kernel,
            "backend": self.backend,
            "operators": ", ".join(self.ops),
            "step": self.step,
        }
        found.update({name: text for name, text in texts.items() if text})
        if self.local_error is not None:
            due = f" (at most {self.due:.2g} is rounding)" if self.due is not None else ""
            found["error there"] = f"{self.local_error:.2g}{due}"
        if self.reduced is not None:
            plural = "s" * (self.reduced.operators != 1)
            text = f"{self.reduced.operators} operator{plural}, error {self.reduced.error:.2g}"
            if self.reduced.iterations:
                numbers = map(str, self.reduced.iterations[::-1])
                text += f", at iteration {' of iteration '.join(numbers)} of a loop"
            found["reduced to"] = text
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the verdict as nested dicts and lists of numbers and strings; infinities and NaN
        are text.
        """
        document: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "kind", "summary", "error", "tolerance", "reference", "runs", "failed_runs",
                "pass_name", "stage", "node", "old_node", "layers", "kernel", "backend", "ops",
                "step", "local_error", "due", "evidence",
            )
        }  # fmt: skip
        document["culprits"] = [vars(c) for c in self.culprits]
        if self.reduced is not None:
            document["reduced"] = {
                "operators": self.reduced.operators,
                "error": self.reduced.error,
                "iterations": list(self.reduced.iterations),
                "inputs": {n: list(np.shape(v)) for n, v in self.reduced.inputs.items()},
            }
        return plain(document)  # type: ignore[no-any-return]

    def write(self, folder: str | Path) -> Path:
        """Writes a reproducer into a folder (created if needed) and returns it: `reproduce.py`
        exits with 1 while the reduced model fails; `docs/bisect.md` lists the files.

        Errors: I172 if the folder cannot be written.
        """
        return write(Path(folder), self.to_json(), _markdown(self), self.reduced)


def _markdown(verdict: Verdict) -> str:
    lines = [f"# {verdict.kind}: {KINDS[verdict.kind]}", "", f"{verdict.summary}.", ""]
    lines += [f"- **{name}**: `{text}`" for name, text in verdict.facts().items()]
    if verdict.evidence:
        lines += ["", "## What was compared", ""]
        lines += [f"{n}. {text}" for n, text in enumerate(verdict.evidence, 1)]
    if verdict.culprits:
        lines += ["", "## Where values diverge", "", "| layers | error | due |", "|---|---|---|"]
        lines += [
            f"| {', '.join(c.layers)} | {c.error:.2g} | {c.due:.2g} |" for c in verdict.culprits
        ]
    if verdict.reduced is not None:
        lines += ["", "## The part that fails alone", ""]
        lines += ["`python reproduce.py` exits with 1 while it fails.", "", "```"]
        lines += [str(verdict.reduced.module).rstrip(), "```"]
    return "\n".join(lines) + "\n"
