"""`compiled.profile(...)`: fused as deployed, one operator per kernel, or both side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from clew.build.kernel import Kernel
from clew.ir.notes import places_of
from clew.passes.fusion.fuse_ops import FuseOps
from clew.profile.by_module import module_profiles
from clew.profile.described import described_kernel, described_layers, described_steps
from clew.profile.report import Profile
from clew.profile.rollup import (
    Timed,
    Weigh,
    exact,
    host_profile,
    kernel_profile,
    layer_profiles,
    undivided_profile,
)
from clew.profile.roofs import Machine, Roofs, machine
from clew.profile.rows import Gain, KernelProfile, LineShare, Outside
from clew.profile.split import Split, estimated_splits, split_kernels
from clew.profile.timing import Measured, Subject, measure
from clew.profile.work import LayerWork
from clew.runtime.program import RunRegion
from clew.serving.built_model import BuiltModel
from clew.serving.model import Model
from clew.support.errors import InputError
from clew.trace.places import CodePlace

Mode = Literal["fused", "unfused", "both"]
Say = Callable[[str], None]
WARMUP: Final = 5
_SAMPLE_SECONDS: Final = 1.0
_UNSTEADY: Final = 0.2  # the largest spread of wall times without a note
_NO_SAMPLING: Final = "I117"


@dataclass(frozen=True)
class _Asked:
    """Options of `profile`."""

    repeats: int | None
    warmup: int
    seconds: float
    must_sample: bool
    every: bool
    here: Machine | None
    say: Say


def profile(
    model: Model[Any, Any],
    arrays: Sequence[Any],
    *,
    repeats: int | None = None,
    warmup: int = WARMUP,
    sample: bool | float = True,
    mode: str = "fused",
    roofline: bool = True,
    seconds: float | None = None,
    every: bool = False,
    on_progress: Say | None = None,
) -> Profile:
    """Returns where the time of a model's runs with these inputs goes; see `Model.profile`.

    `seconds`, instead of `repeats`, limits the time of runs, for interactive use; there are at
    least five runs with and without timers. Measuring the machine is then faster, too. With
    `every`, kernels of one operator are sampled as often as others, for the shares of their lines.
    """
    say = on_progress or (lambda text: None)
    _check(model, repeats, warmup, sample, mode)
    must_sample = not isinstance(sample, bool)
    sampled = float(sample) if must_sample else _SAMPLE_SECONDS * bool(sample)
    fused = Subject(model, arrays)
    subjects = [] if mode == "unfused" else [fused]
    if mode != "fused":
        say("compiling with one operator per kernel")
        subjects.append(Subject(_unfused(model), arrays))
    found = measure(subjects, repeats, warmup, say, seconds)
    here = None
    if roofline and isinstance(model, BuiltModel):
        say("measuring the machine")
        here = machine(_threads(found[0]), quick=seconds is not None)
    asked = _Asked(repeats, warmup, sampled, must_sample, every, here, say)
    profiles = [
        _profile("fused" if subject is fused else "unfused", subject, times, asked)
        for subject, times in zip(subjects, found, strict=True)
    ]
    if len(profiles) == 1:
        return profiles[0]
    return replace(profiles[0], unfused=profiles[1], gains=gains(*profiles))


def _check(
    model: Model[Any, Any], repeats: int | None, warmup: int, sample: bool | float, mode: str
) -> None:
    if mode not in get_args(Mode):
        raise InputError(
            "I110", f"no mode {mode!r}", hint=f"it is one of {', '.join(get_args(Mode))}"
        )
    if mode != "fused" and not isinstance(model, BuiltModel):
        raise InputError(
            "I111",
            "a saved model cannot be compiled again, with one operator per kernel",
            hint="compile the model's own file and profile that",
        )
    if (repeats is not None and repeats < 1) or warmup < 0 or sample < 0:
        raise InputError(
            "I116",
            f"repeats is {repeats}, warmup {warmup}, sample {sample}",
            hint="repeats is at least 1; warmup, and seconds of sampling, at least 0",
        )


def _unfused(model: Model[Any, Any]) -> BuiltModel:
    """Returns the same module compiled with the same options and one kernel per operator."""
    assert isinstance(model, BuiltModel)
    passes = tuple(
        FuseOps(mode="none") if isinstance(p, FuseOps) else p for p in model.options.passes
    )
    return model.recompiled(passes=passes)


def _threads(measured: Measured) -> int:
    return max((segment.pool.threads for segment in measured.ready.segments), default=1)


def _profile(
    mode: Literal["fused", "unfused"], subject: Subject, measured: Measured, asked: _Asked
) -> Profile:
    model, wall_ns = subject.model, max(measured.wall.ns, 1.0)
    notes: list[str] = []
    order: Mapping[str, int] = {}
    types: Mapping[str, str] = {}
    places: Sequence[CodePlace] = ()
    if isinstance(model, BuiltModel):
        work = LayerWork(model.build)
        order, types = model.build.layer_order, work.types
        places = places_of(model.module)
        seconds = asked.seconds if mode == "fused" else 0.0
        splits = _splits(model, subject.arrays, seconds, asked, notes)
        roofs = Roofs(asked.here) if asked.here is not None else None
        kernels = [
            _kernel(kernel, runs, time, wall_ns, splits, work.weigh, roofs)
            for kernel, runs, time in measured.kernels
        ]
        target = model.options.target.name
        weigh: Weigh = work.weigh
    else:
        notes.append(
            "a saved model lacks its operators' computation: the time of a kernel that "
            "serves several layers is not divided, and there are no roofs"
        )
        kernels = [
            undivided_profile(Timed(k.name, k.ops, k.layers, runs, time), wall_ns)
            for k, runs, time in measured.kernels
        ]
        target, weigh = "", lambda layers: [1.0] * len(layers)
    hosts = _hosts(measured, wall_ns, weigh)
    kernels += described_steps(hosts, model.build) if isinstance(model, BuiltModel) else hosts
    if measured.wall.spread > _UNSTEADY:
        notes.append(
            f"runs vary by {100 * measured.wall.spread:.0f} %: other programs use the machine, "
            "which lengthens interrupted runs; profile again, or compare the best times"
        )
    layers = layer_profiles(kernels, wall_ns, order, types)
    if isinstance(model, BuiltModel):
        layers = described_layers(layers, work)
    profile = Profile(
        mode=mode,
        target=target,
        threads=_threads(measured),
        warmup=asked.warmup,
        rounds=measured.rounds,
        runs_a_round=measured.parts,
        wall=measured.wall,
        timed_wall=measured.timed_wall,
        overhead=measured.overhead,
        kernels=tuple(kernels),
        layers=layers,
        modules=module_profiles(layers, places, wall_ns),
        outside=(),
        limits=asked.here.limits() if asked.here is not None else None,
        notes=tuple(notes),
    )
    return replace(profile, outside=_outside(measured, profile.outside_ns))


def _splits(
    model: BuiltModel, arrays: Sequence[Any], seconds: float, asked: _Asked, notes: list[str]
) -> dict[int, Split]:
    """Returns the kernels' splits: from samples if requested and possible, else estimated."""
    if seconds:
        asked.say("sampling")
        try:
            return split_kernels(
                model, arrays, seconds=seconds, every=asked.every, on_progress=asked.say
            )
        except InputError as error:
            if asked.must_sample or error.code != _NO_SAMPLING:
                raise
            notes.append(f"shares in fused kernels are estimates: {error.message}")
    return estimated_splits(model)


def _kernel(
    kernel: Kernel,
    runs: float,
    time: Any,
    wall_ns: float,
    splits: Mapping[int, Split],
    weigh: Weigh,
    roofs: Roofs | None,
) -> KernelProfile:
    split = splits[kernel.call.id]
    if split.lines:
        split = replace(split, lines=_all_lines(kernel, split))
    timed = Timed(kernel.name, kernel.ops, kernel.layers, runs, time)
    roof = roofs.of(kernel, runs, exact(time.ns)) if roofs is not None else None
    return described_kernel(kernel_profile(timed, wall_ns, split, weigh, roof), kernel)


def _all_lines(kernel: Kernel, split: Split) -> tuple[LineShare, ...]:
    """Returns the kernel's whole loop nest, including lines without samples."""
    known = {line.line: line for line in split.lines}
    rows = []
    for number, text in enumerate(kernel.loops.splitlines(), 1):
        found = known.get(number)
        samples, share = (found.samples, found.share) if found else (0.0, 0.0)
        rows.append(LineShare(number, text, samples, share))
    return tuple(rows)


def _outside(measured: Measured, ns: float) -> tuple[Outside, ...]:
    """Returns the breakdown of the time outside kernels, the largest first."""
    rows = [Outside(what, count, ns * share) for what, (count, share) in measured.outside.items()]
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _hosts(measured: Measured, wall_ns: float, weigh: Weigh) -> list[KernelProfile]:
    rows: list[KernelProfile] = []
    taken: dict[str, int] = {}
    for host, runs, time in measured.hosts:
        count = taken[host.label] = taken.get(host.label, 0) + 1
        place = host.backend if isinstance(host, RunRegion) else "host"
        name = f"{place}:{host.label}" + (f"_{count - 1}" if count > 1 else "")
        rows.append(host_profile(name, host, runs, time, wall_ns, weigh))
    return rows


def gains(fused: Profile, unfused: Profile) -> tuple[Gain, ...]:
    """Returns the gains from fusion: of the whole run first, then by layer in the model's order."""
    whole = Gain(None, "", unfused.wall.ns, fused.wall.ns, len(unfused.kernels), len(fused.kernels))
    before = {layer.layer: layer for layer in unfused.layers}
    after = {layer.layer: layer for layer in fused.layers}
    rows = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        known = old or new
        assert known is not None
        rows.append(
            Gain(
                name,
                known.op,
                old.ns if old else 0.0,
                new.ns if new else 0.0,
                len(old.kernels) if old else 0,
                len(new.kernels) if new else 0,
            )
        )
    return (whole, *rows)
