"""The gain of each layer of a model by tuning, and its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table

from clew.api.compiled_model import CompiledModel
from clew.backends.cpu.history import with_choices
from clew.backends.cpu.lowering import KernelSource
from clew.ir.expr import Function
from clew.ir.structural import structural_hash
from clew.passes.apply_history import ApplyHistory, untuned
from clew.records import Store, Trial
from clew.records.store import kernel_uses
from clew.support.shown import Shown, counted
from clew.support.tables import as_text, table
from clew.tuning.session import Tally
from clew.tuning.tunable import difference
from clew.tuning.why import why

_LAYERS_SHOWN: Final = 2
_RECORD: Final = re.compile(r"\btrial [0-9a-f]{16} of ")


@dataclass(frozen=True)
class TunedKernel:
    """A kernel with a record: all its uses in the model, their layers, the choices that it is
    compiled with and how they differ from the default, microseconds in a call before and after, and
    the reason for the gain. `state` is that of the applied record; if a record is skipped, `reason`
    says why. `models` are other models with the same kernel.
    """

    kernel: str
    uses: tuple[str, ...]
    layers: tuple[str, ...]
    trial: str
    choices: str
    difference: str
    before_us: float | None
    after_us: float | None
    gain: float
    spread: float | None
    confirmed: bool
    why: str
    trials: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class TuneReport(Shown):
    """The gain of each layer of a model by tuning.

    `kernels` are those with an applied record, largest gain first; `decisions` has a remark for
    each decision about the graph that records made, and `skipped` one for each record that could
    not be applied. `untouched` is the number of the kernels that keep the default choices. `tally`
    counts the trials of a session.
    """

    model: str
    machine: str
    threads: int
    kernels: tuple[TunedKernel, ...]
    decisions: tuple[str, ...]
    skipped: tuple[str, ...]
    untouched: int
    tally: Tally | None = None

    def _about(self) -> str:
        return f"of {self.model}, {counted(len(self.kernels), 'kernel')} tuned"

    @property
    def saved_us(self) -> float:
        """Microseconds of a call that the records save, from the ratios of single kernels."""
        return sum(
            k.before_us - k.after_us
            for k in self.kernels
            if k.before_us is not None and k.after_us is not None
        )

    @property
    def layers(self) -> dict[str, float]:
        """The share of its kernel's time that each layer's kernel saves, by layer."""
        return {layer: k.gain for k in self.kernels for layer in k.layers}

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "model": self.model,
            "machine": self.machine,
            "threads": self.threads,
            "saved_us": self.saved_us,
            "kernels": [asdict(k) for k in self.kernels],
            "decisions": list(self.decisions),
            "skipped": list(self.skipped),
            "untouched": self.untouched,
            "session": None if self.tally is None else self.tally.to_json(),
        }

    def __str__(self) -> str:
        lines = []
        if self.tally is not None:
            lines += session_lines(self.tally)
        if self.kernels:
            lines.append(as_text(self.table()))
        lines += self.notes()
        return "\n".join(lines)

    def table(self) -> Table:
        """Returns the kernels as a table for a terminal."""
        numbers = ("µs before", "after", "saved")
        made = table("kernel", "layers", *numbers, "choices", "why", right=numbers)
        for kernel in self.kernels:
            made.add_row(
                kernel.kernel + (f" ×{len(kernel.uses)}" if len(kernel.uses) > 1 else ""),
                _shown(kernel.layers),
                _us(kernel.before_us),
                _us(kernel.after_us),
                f"{100 * kernel.gain:.1f} %" + ("" if kernel.confirmed else " ?"),
                kernel.difference,
                kernel.why,
            )
        return made

    def notes(self) -> list[str]:
        """Returns the sums, and remarks on skipped records, as lines."""
        tuned = counted(len(self.kernels), "kernel")
        lines = [
            f"{tuned} of {len(self.kernels) + self.untouched} have faster choices than the "
            f"default ones, which save {self.saved_us:.1f} µs a call"
        ]
        if any(not k.confirmed for k in self.kernels):
            lines.append("?: not measured against the default choices yet at a session's end")
        return [*self.decisions, *lines, *self.skipped]


def session_lines(tally: Tally) -> list[str]:
    """Returns a session's trials and results, as lines."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(tally.states.items()))
    lines = [f"{counted(tally.trials, 'trial')} in {tally.seconds:.0f} s: {states or 'none'}"]
    if tally.whole is not None:
        lines.append(str(tally.whole))
    if tally.left == 0:
        lines.append("nothing is left to try: more time will not save more")
    elif tally.expected_gain is not None:
        lines.append(f"another 10 minutes may save about {100 * tally.expected_gain:.1f} % more")
    if tally.whole is not None and tally.whole.problem:
        lines.append(tally.whole.problem)
    if tally.stopped:
        lines.append("stopped; the same command goes on from here")
    return lines


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _shown(layers: Sequence[str]) -> str:
    more = len(layers) - _LAYERS_SHOWN
    return ", ".join(layers[:_LAYERS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def report_of(
    compiled: CompiledModel, store: Store, model: str, threads: int, tally: Tally | None = None
) -> TuneReport:
    """Returns the report on a model that was compiled with the records of a store."""
    target = compiled.options.target
    best = store.best(target.identity, threads)
    counts: dict[str, int] = {}
    for trial in store.trials(target.identity, threads):
        counts[trial.subject] = counts.get(trial.subject, 0) + 1
    elsewhere = kernel_uses(store.uses())
    build = compiled.template
    groups: dict[str, list[Any]] = {}
    for use in build.uses:
        assert isinstance(use.call.op, Function)
        groups.setdefault(structural_hash(untuned(use.call.op)), []).append(use)
    found: list[TunedKernel] = []
    for subject, uses in groups.items():
        source: KernelSource = uses[0].source
        choices = str(source.function.attrs.get("tuned", ""))
        applied = [t for t in best.get(("kernel", subject), ()) if t.choices == choices]
        if not choices or not applied:
            continue
        trial = applied[0]
        default = KernelSource(with_choices(source.function, ""), target, bounds=source.bounds)
        before, after = _times(trial)
        layers = dict.fromkeys(la for use in uses for la in build.kernel_layers(use))
        found.append(
            TunedKernel(
                uses[0].name,
                tuple(use.name for use in uses),
                tuple(layers),
                trial.uid,
                choices,
                difference(choices, str(default.plan.request)),
                before,
                after,
                trial.gain,
                _spread(trial),
                trial.confirmed,
                why(default, source, threads),
                counts.get(subject, 0),
                tuple(
                    dict.fromkeys(u.model for u in elsewhere.get(subject, ()) if u.model != model)
                ),
            )
        )
    found.sort(key=lambda k: -((k.before_us or 0.0) - (k.after_us or 0.0)))
    return TuneReport(
        model,
        target.identity,
        threads,
        tuple(found),
        tuple(_remarks(compiled, skipped=False)),
        tuple(_remarks(compiled, skipped=True)),
        len(groups) - len(found),
        tally,
    )


def _times(trial: Trial) -> tuple[float | None, float | None]:
    """Returns microseconds in a call before and after."""
    if trial.ns is None or not trial.total_ratio:
        return None, None
    return trial.ns / trial.total_ratio / 1e3, trial.ns / 1e3


def _spread(trial: Trial) -> float | None:
    """Returns the distance of the quartiles, as a share of the median."""
    if trial.ns is None or trial.q1_ns is None or trial.q3_ns is None or not trial.ns:
        return None
    return (trial.q3_ns - trial.q1_ns) / trial.ns


def _remarks(compiled: CompiledModel, *, skipped: bool) -> list[str]:
    """Returns the remarks on decisions that records made, or on records that were skipped."""
    return list(
        dict.fromkeys(
            remark.text
            for stage in compiled.template.stages
            for remark in stage.remarks
            if _RECORD.search(remark.text)
            and (" is skipped: " in remark.text) == skipped
            and (skipped or stage.name != ApplyHistory.__name__)
        )
    )
