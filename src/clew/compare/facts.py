"""Facts about a whole build: its options, sizes, compile times, and the passes' work."""

from __future__ import annotations

from clew.backends.options import Options
from clew.compare.align import Alignment
from clew.compare.rows import BuildFacts, PassFacts
from clew.compare.state import Side
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.mark_fusions import MarkFusions
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.runtime.program import RunHost, RunRegion


def build_facts(side: Side, name: str) -> BuildFacts:
    """Returns a build's facts; `name` is the build's name."""
    build = side.build
    plans = [segment.plan for segment in build.segments]
    objects = {b.object.key: b.object.data for b in build.binaries.values()}
    instructions = [i for p in build.program.walk() for i in p.instructions]
    return BuildFacts(
        name=name,
        options=option_facts(side.compiled.options),
        layers=len(side.layers),
        kernels=len(build.uses),
        distinct_kernels=len(build.binaries),
        cached_kernels=build.cached_kernels,
        host_steps=sum(
            isinstance(i, RunHost) and not isinstance(i, RunRegion) for i in instructions
        ),
        regions=len(build.regions),
        arena_bytes=sum(plan.arena_bytes for plan in plans),
        weights_bytes=build.constant_bytes,
        code_bytes=sum(map(len, objects.values())),
        seconds=dict(build.seconds),
    )


def option_facts(options: Options) -> dict[str, str]:
    """Returns a model's compile options as text, by the names of `clew.compile`'s arguments.

    `passes` lists the user's own.
    """
    narrow = next((p for p in options.passes if isinstance(p, ConvertPrecision)), None)
    fuse = next((p for p in options.passes if isinstance(p, FuseOps)), None)
    own = [p for p in options.passes if not p.is_builtin or isinstance(p, MarkFusions)]
    facts = {
        "opt_level": str(options.opt_level),
        "precision": narrow.dtype if narrow else "f32",
        "keep_f32": ", ".join(narrow.keep_f32) if narrow else "",
        "fuse": "none" if fuse is None or fuse.mode == "none" else fuse.mode,
        "threads": str(options.threads),
        "target": options.target.name,
        "required": ", ".join(options.required),
        "disabled": ", ".join(options.disabled),
        "passes": ", ".join(p.name for p in own),
        "schedules": ", ".join(s.name for s in options.schedules),
        "backends": ", ".join(b.name for b in options.backends),
    }
    return facts


def pass_facts(sides: tuple[Side, Side], alignment: Alignment) -> tuple[PassFacts, ...]:
    """Returns the passes of either build in order, and how many layers each treated."""
    a, b = sides
    ours, theirs = a.pass_names, b.pass_names
    partner = {m.a: m.b for m in alignment.matches}
    found = []
    for name in _merged(ours, theirs):
        treated_a = {layer for layer, s in a.states.items() if name in s.passes}
        treated_b = {layer for layer, s in b.states.items() if name in s.passes}
        otherwise = sum(
            a.states[m].passes.get(name) != b.states[n].passes.get(name) for m, n in partner.items()
        )
        otherwise += len(treated_a - set(partner)) + len(treated_b - set(partner.values()))
        found.append(
            PassFacts(
                name,
                len(treated_a) if name in ours else None,
                len(treated_b) if name in theirs else None,
                otherwise,
            )
        )
    return tuple(found)


def _merged(a: list[str], b: list[str]) -> list[str]:
    """Returns the names of both lists; names only in the second come after the name they follow
    there.
    """
    found = list(a)
    at = 0
    for name in b:
        if name in found:
            at = found.index(name) + 1
        else:
            found.insert(at, name)
            at += 1
    return found
