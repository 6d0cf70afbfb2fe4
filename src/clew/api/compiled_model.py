"""A compiled model: call it, look at its kernels and its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.api.profiled_model import ProfiledModel
from clew.serving.built_model import BuiltModel
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:  # imported by the first call of what returns them
    from clew.build.kernel import Kernel
    from clew.build.result import Build
    from clew.correlate.conversion_rows import Conversions
    from clew.correlate.graph_json import ExecutorGraph
    from clew.libraries import Exported

    _Profiled = ProfiledModel[Kernel, Build]
else:
    _Profiled = ProfiledModel


class CompiledModel(_Profiled, BuiltModel):
    """A compiled model.

    ```python
    outputs = compiled(x)  # arrays in the order of the inputs
    outputs = compiled.run({"input": x})  # by name; a dict by output name
    ```

    Calls may come from several threads at once. One build serves all sizes of a model with symbolic
    sizes, and all values of inputs that decide sizes (`inputs` marks these). For calls with sizes
    of 0 that this build does not serve, or with inputs that may have any rank, there is one such
    build for each set of empty sizes and of ranks (a variant). Sizes and values have a build of
    their own if that build is not valid for them (a negative value), if the values decide more than
    sizes, if some kernel cannot take its sizes from a call, or if the model uses other backends.
    `builds_made` counts builds. The programs of the last 32 sets of sizes are kept.
    """

    def _repr_html_(self) -> str:
        with LOADING, held_interrupts():
            from clew.explorer.notebook import model_html  # noqa: PLC0415

        return model_html(self, self.last_profile)

    def graph(self) -> ExecutorGraph:
        """Returns the executor as data (`clew.ExecutorGraph`): nodes, kernels, operators at each
        stage, layers. For a model with symbolic sizes, it describes the last build.

        Errors: I044 (see `build`).
        """
        with LOADING, held_interrupts():
            from clew.correlate.document import executor_graph  # noqa: PLC0415

        return executor_graph(self)

    def conversions(self) -> Conversions:
        """Returns the steps that only change how values are stored, as integers, floats or in
        another layout: those in the model and those that passes inserted, why, and what became of
        each, such as the kernel that it was fused into. For a model with symbolic sizes, it
        describes the last build.

        Errors: I044 (see `build`), I045 (compiled without its trace).
        """
        with LOADING, held_interrupts():
            from clew.correlate.conversions import conversions_of  # noqa: PLC0415

        return conversions_of(self)

    def tap(
        self,
        layers: str | Sequence[str],
        /,
        *inputs: Any,
        output: int | None = None,
        force: bool = False,
        iterations: bool = False,
        **named: Any,
    ) -> Any:
        """Returns values of layers in a run: `compiled.tap("conv1", x)`.

        Inputs are given as in a call. One name returns its value (`output` selects one of several
        results); a list of names, or a pattern (`block1/*`), returns `clew.Taps`, a mapping. The
        program is not changed: `tap` reads values that kernels write to memory, and converts them
        to the layer's own layout and dtype. For a value inside a kernel it raises an error with the
        reason and the nearest values in memory, unless `force` is set; then that kernel is cut
        there, for this call only. For layers in branches and loops it returns the last value; with
        `iterations`, values in loops get a leading axis, the iterations in order (a list if their
        shapes differ).

        Errors: I070 (no such layer), I150 (inside a kernel), I151 (no longer computed), I152 (a
        pattern that matches no layer), I153 (`output`), I154 (`force` cannot cut there), I155 (the
        layer did not run), I045 (`Diagnostics(trace=False)`), and those of a run.
        """
        checked = self.checked(inputs, named, options=("output", "force", "iterations"))
        self.served_for(checked)
        with LOADING, held_interrupts():
            from clew.tap import tap  # noqa: PLC0415

        return tap(self, layers, checked, output=output, force=force, iterations=iterations)

    def report(
        self,
        path: str | Path,
        *,
        profile: bool = True,
        inputs: Any = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Writes the explorer's page, with everything it shows about this model, as one HTML file
        that opens without clew or a network. With `profile`, the report includes measured runs.

        `inputs` are the inputs of these runs, by name or in order. Inputs missing from a mapping
        are drawn at random, at the sizes in `shapes` (by input), else at those of the last run. For
        a model with symbolic sizes, the page shows the build for these inputs.

        Errors: I045 (see `trace`), I040 to I043 (`inputs`), I303 (`shapes`), I061 (inputs that
        cannot be drawn), I250 (the page was not built), I251 (the file).
        """
        with LOADING, held_interrupts():
            from clew.explorer.report import report  # noqa: PLC0415

        report(self, path, profile=profile, inputs=inputs, shapes=shapes)

    def export_c(
        self,
        folder: str | Path,
        name: str = "model",
        *,
        weights_file: bool = False,
        state: Mapping[str, str] | None = None,
        targets: Sequence[str] = (),
    ) -> Exported:
        """Exports the model as a library with a C interface to a folder: object, archive, header,
        an example, and files for CMake and pkg-config (docs/c-libraries.md). `name` is the prefix
        of all C names. With `weights_file`, the weights are in a separate file, whose contents are
        the last input of a call.

        `state` maps each state input to the output that feeds it, as in `session`; without it,
        states are those that the model itself has. A library keeps no state itself: it is in the
        caller's memory, which calls read and write.

        The native code is that of this model. It is for the target that the model was compiled for,
        which need not be this machine. With `targets`, names of x86-64 targets, the model is
        compiled for each of them instead: the library has the code of all, and a call chooses by
        the features of the CPU that it runs on.

        Errors: I044 (see `build`), I470 (`name`), I471 (the folder), I474 (`targets`), I371 and
        I372 (`state`), U080 to U082 (a part of the model that cannot be exported), C001.
        """
        with LOADING, held_interrupts():
            from clew.libraries import export_c  # noqa: PLC0415

        return export_c(self, folder, name, weights_file=weights_file, state=state, targets=targets)

    def explore(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        browser: bool = False,
        block: bool = False,
    ) -> Any:
        """Serves the explorer's page for this model from this process. Returns an object with `url`
        and `stop()` (`clew.explorer.serving.Explored`), which is also a context manager.

        The page is that of `clew explore`: only this machine reaches it (`host`), and only with the
        secret in its URL. Port 0 selects a free port. `browser` opens the page. `block` prints the
        URL and returns when the server is stopped or interrupted. Builds made from the page run in
        their own processes, without the passes, fusions and schedules given here.

        Errors: I044 and I045 (see `trace`), I225 (host or port), I343 (port).
        """
        with LOADING, held_interrupts():
            from clew.explorer.serving import explore  # noqa: PLC0415

        return explore(self, port=port, host=host, browser=browser, block=block)
