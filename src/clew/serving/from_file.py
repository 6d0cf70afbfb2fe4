"""The chain of a saved model, made without the compiler.

The operators' package is imported only if the model calls operators between kernels, and the rest
of the compiler only if the shapes of some kernels are known only during the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.machine.needs import check_machine
from clew.runtime.artifact import (
    BuildReader,
    HostResolver,
    Json,
    LoadedBuild,
    LoadedKernel,
    LoadedTemplate,
    has_host_steps,
    has_regions,
    read_inputs,
    read_needs,
    read_outputs,
    read_ranges,
)
from clew.runtime.container import Container, read_container
from clew.runtime.input_spec import size_names
from clew.runtime.output_spec import OutputSpec
from clew.runtime.threads import shared_pool, thread_count
from clew.runtime.variant import Variant
from clew.serving.chain import Chain
from clew.serving.interface import Interface
from clew.serving.saved import SavedAllSizes, SavedBuilds, loaded
from clew.serving.served import Declined, Provider, Request, Served
from clew.serving.variants import Variants, Whole
from clew.support.errors import CompileError, InputError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:
    from clew.runtime.template import ProgramTemplate
    from clew.support.call_form import CallForm

# Exceptions from reading inconsistent text.
_CONTRADICTIONS = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError, RecursionError,
    OverflowError, MemoryError,
)  # fmt: skip


class LoadedChain(Chain[LoadedBuild]):
    """The chain of a saved model. Providers, in order: saved builds, variants, and the build for
    all sizes.
    """

    def __init__(
        self,
        interface: Interface,
        outputs: Sequence[OutputSpec],
        builds: Sequence[LoadedBuild],
        template: LoadedTemplate | None = None,
        variants: Mapping[Variant, LoadedChain] | None = None,
        form: CallForm | None = None,
        options: Json | None = None,
    ) -> None:
        self.outputs = tuple(outputs)
        self.options = options or {}
        self.builds = {build.key: build for build in builds}
        self.template = template
        self.variants = dict(variants or {})
        self.form = form
        self.runs_regions = False
        """Whether other backends run regions of it, which `kernels` leaves out."""
        self.copied: Callable[[Path, Json], bool] = lambda path, options: False
        """Writes the model to a file, with a record of options; false if that is not possible."""
        whole = None
        if len(builds) == 1 and not interface.is_free:
            whole = loaded(SavedBuilds.name, builds[0].key, {}, builds[0])
        known = [_sizes(key[0]) for key in self.builds]
        known = [*(["other sizes"] if template is not None else []), *known]
        known += [str(variant) for variant in self.variants if not variant.held]
        refuse = partial(_refusal, known, bool(interface.deciding))
        super().__init__(interface, self._providers(interface, whole), whole, refuse)

    def held(self, variant: Variant) -> LoadedChain | None:
        return self.variants.get(variant)

    def prepare(self) -> None:
        """Makes programs at likely sizes, so that the first call is no slower than later ones."""
        if self.template is not None:
            names = size_names(self.interface.inputs)
            self.template.template.prepare(names, dict(self.interface.ranges.expected))
        for variant in self.variants.values():
            variant.prepare()

    def _providers(
        self, interface: Interface, whole: Served[LoadedBuild] | None
    ) -> list[Provider[LoadedBuild]]:
        saved = bool(self.builds) and whole is None
        found: list[Provider[LoadedBuild]] = [SavedBuilds(self.builds)] if saved else []
        if self.variants:
            known = dict(self.variants)
            missing = Declined(Variants.name, "the file has none for these sizes")
            by_ones = any(variant.ones is not None for variant in known)
            found.append(Variants(interface, lambda v: known.get(v, missing), by_ones=by_ones))
        if whole is not None:
            return [*found, Whole(whole)]
        return [*found, SavedAllSizes(self.template)] if self.template is not None else found

    @property
    def kernels(self) -> Sequence[LoadedKernel] | None:
        """The kernels of the program that serves all sizes, if there is one."""
        if self.whole is not None:
            return self.whole.build.kernels
        return None if self.template is None else self.template.kernels

    @property
    def sized(self) -> ProgramTemplate | None:
        """The program for all sizes, if there is one."""
        return self.template.template if self.template is not None else None


def read_saved(path: str | Path, threads: int | None, backends: Sequence[Any]) -> LoadedChain:
    """Returns the chain of a model in a file. Errors: as `load_compiled`."""
    thread_count(threads)  # reports a wrong number first
    return _read(read_container(Path(path)), str(path), threads, backends, prepares=True)


def read_stored(
    container: Container,
    threads: int | None,
    backends: Sequence[Any] = (),
    *,
    made_here: bool = False,
) -> LoadedChain:
    """Returns the chain of a stored model. With `made_here`, it was compiled on a machine like this
    one, which is not compared: that takes LLVM. It is not prepared for likely sizes, since a call
    with others usually follows at once. Errors: as `load_compiled`.
    """
    return _read(container, "the stored build", threads, backends, made_here=made_here)


def _read(
    container: Container,
    shown: str,
    threads: int | None,
    backends: Sequence[Any],
    *,
    made_here: bool = False,
    prepares: bool = False,
) -> LoadedChain:
    count = thread_count(threads)
    pool = shared_pool(count)
    try:
        text = container.text
        if not made_here:
            check_machine(read_needs(text))
        resolve = _host_resolver() if has_host_steps(text) else None
        regions = None
        if has_regions(text) or backends:
            with LOADING, held_interrupts():
                from clew.backends.regions import RegionReader  # noqa: PLC0415

            regions = RegionReader(backends, count)
        loops = join = None
        if resolve is not None:  # native loops join kernels that are compiled during the run
            with LOADING, held_interrupts():
                from clew.backends.cpu.joined_counts import joined_counts  # noqa: PLC0415
                from clew.backends.cpu.joined_loop import saved_loop  # noqa: PLC0415

            loops, join = saved_loop, joined_counts
        reader = BuildReader(container, pool, resolve, regions, loops, join)
        found = _chain(reader, text, text)
        found.runs_regions = has_regions(text)
        if prepares:
            found.prepare()
        return found
    except _CONTRADICTIONS as error:
        raise CompileError(
            "C055",
            f"{shown} contradicts itself: {error!r}",
            hint="compile the model and save it again",
        ) from error


def _chain(reader: BuildReader, whole: Json, text: Json) -> LoadedChain:
    """Returns the chain of the model or variant that `text` describes; `whole` is the text of the
    file.
    """
    builds, template = reader.builds(text), reader.template(text)
    variants = {
        Variant.from_json(part): _chain(reader, whole, part) for part in text.get("variants", ())
    }
    if not builds and template is None and not variants:
        raise AssertionError("no build")
    interface = Interface(read_inputs(text), read_ranges(whole), text["deciding"])
    form = None
    if "form" in whole:
        with LOADING, held_interrupts():
            from clew.support.call_form import CallForm  # noqa: PLC0415

        form = CallForm.of(whole["form"])
    outputs, options = read_outputs(whole), whole.get("options")
    return LoadedChain(interface, outputs, builds, template, variants, form, options)


def _refusal(
    known: Sequence[str], by_value: bool, request: Request, declined: Sequence[Declined]
) -> InputError:
    wanted = [a.shape for a in request.arrays if hasattr(a, "shape")]
    return InputError(
        "I046",
        f"the saved model has no build for inputs of {_sizes(wanted)}"
        f"{' with these values' if by_value else ''}; it has those for {' and '.join(known)}",
        hint="compile the model, run it at these sizes too, and save it again",
    )


def _sizes(shapes: Sequence[tuple[int, ...] | None]) -> str:
    return ", ".join("[" + ", ".join(map(str, s or ())) + "]" for s in shapes)


def _host_resolver() -> HostResolver:
    """Imports the operators and returns the function that finds one by name."""
    with LOADING, held_interrupts():
        from clew.build.saved_steps import step_from_json  # noqa: PLC0415

    return step_from_json
