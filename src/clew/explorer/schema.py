"""The wire format of the explorer; `tools/wire_types.py` generates TypeScript from it.

Things are named by *refs*, short texts that are also in the page's URL: `layer:conv1`,
`node:3:120` (stage and the node's number), `kernel:4`, `region:0`, `loop:4:12`, `llvm:4:30`,
`asm:4:7` (kernel and line, or instruction, from 1), `stage:3`, `source:17` (a line of the model
pane). Nodes are numbered over all stages together, as in exported traces: a node kept by a pass
keeps its number. Layers and kernels are numbered from 0 by their places in `Overview.layers` and
`Overview.kernels`. Lines count from 1. Times are nanoseconds if their names end in `ns`, otherwise
seconds. Tables with many rows are columns of equal length, which halves their size and keeps the
page fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clew.explorer.schema_regions import Alternative as Alternative
from clew.explorer.schema_regions import PlacedPlan as PlacedPlan
from clew.explorer.schema_regions import PlacedRegion as PlacedRegion
from clew.explorer.schema_regions import Placement as Placement
from clew.explorer.schema_regions import RegionCopy as RegionCopy
from clew.explorer.schema_regions import RegionDetails as RegionDetails
from clew.explorer.schema_regions import RegionInfo as RegionInfo
from clew.explorer.schema_regions import RegionTable as RegionTable
from clew.explorer.schema_regions import RegionTrack as RegionTrack
from clew.explorer.schema_runs import Heat as Heat
from clew.explorer.schema_runs import LoopIteration as LoopIteration
from clew.explorer.schema_runs import Metric as Metric
from clew.explorer.schema_runs import NodeFigures as NodeFigures
from clew.explorer.schema_runs import Number
from clew.explorer.schema_runs import PartCost as PartCost
from clew.explorer.schema_runs import Profiled as Profiled
from clew.explorer.schema_runs import Ref as Ref
from clew.explorer.schema_runs import Roofline as Roofline
from clew.explorer.schema_runs import RooflinePoint as RooflinePoint
from clew.explorer.schema_runs import Slice as Slice
from clew.explorer.schema_runs import StepCost as StepCost
from clew.explorer.schema_runs import Timeline as Timeline
from clew.explorer.schema_runs import TokenCosts as TokenCosts
from clew.explorer.schema_runs import Values as Values

VERSION = 1

Facts: TypeAlias = dict[str, str | int | float | bool | None]

# --- the model as a whole ---


@dataclass(frozen=True)
class Layer:
    """A layer of the user's model. `group` is the path in its name, outermost first, without
    itself.

    `fate` is `alive`, `merged`, `folded`, `dead` or similar; `fate_text` describes it in words.
    """

    name: str
    op: str
    group: list[str]
    fate: str
    fate_text: str
    kernels: list[Number]


@dataclass(frozen=True)
class StageInfo:
    """A stage on the film strip: `nodes` after it, and its difference to the previous stage.

    `rewritten` counts replaced nodes, which are in neither `added` nor `removed`. `remarks` counts
    the pass's remarks.
    """

    index: int
    name: str
    summary: str
    changed: bool
    seconds: float
    nodes: int
    added: int
    removed: int
    rewritten: int
    remarks: int


@dataclass(frozen=True)
class KernelInfo:
    """One use of a kernel, in order of execution. `ops` are its operators' names in order and
    `numbers` their nodes in the last stage. Kernels with equal code have the same number
    `distinct`.

    `rules` are the chosen schedule rules; `call` is the number of the kernel's call node.
    """

    index: int
    name: str
    call: Number
    ops: list[str]
    numbers: list[Number]
    layers: list[Number]
    rules: list[str]
    distinct: int
    shape: str
    flops: float
    bytes: float
    grid: str
    code_bytes: int


@dataclass(frozen=True)
class Loop:
    """A layer that is a loop, or became one (LSTM). `parent` is the place in `Overview.loops` of
    the loop around it, -1 for none.

    `iterations` is the trip count of one entry, None if only a run determines it. `layers` are
    those of its body, including those of nested loops; `kernels` run in it.
    """

    layer: Number
    parent: int
    iterations: int | None
    layers: list[Number]
    kernels: list[Number]


@dataclass(frozen=True)
class CodeTotals:
    """The rest of the film strip: the size of each level below the graph, over distinct kernels,
    and the seconds spent making it. `instructions_of` counts those of each kernel of
    `Overview.kernels`.
    """

    loop_lines: int
    llvm_lines: int
    instructions: int
    kernels: int
    kernel_seconds: float
    program_seconds: float
    cached_kernels: int
    instructions_of: list[int]


@dataclass(frozen=True)
class Options:
    """The options of a build: those of `clew.compile` that a page may choose, with the same names
    and defaults, as JSON values. They are written out because the page's types are generated from
    this class.

    `extend` names files among those that the command line gave (`Choices.extensions`). A page
    cannot name others, because they are programs. `schedules` has recorded steps, one per line, by
    the name of a kernel or a glob. `sizes` has the sizes of free dimensions by name, as on the
    command line (`1:512`, `128`). `backends` are names; `place` is `first`, `auto`, or texts
    `backend=layer,...`.
    """

    target: str = "cpu"
    threads: int | None = None
    opt_level: int = 3
    precision: str = "f32"
    fuse: bool = True
    disabled: list[str] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    keep_f32: list[str] = field(default_factory=list)
    extend: list[str] = field(default_factory=list)
    schedules: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)
    backends: list[str] = field(default_factory=list)
    place: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Overview:
    """The data that the page needs first: layers, stages, kernels, regions and loops of a build; a
    loop precedes its inner loops.

    `placement` is the measured placement that the build was compiled with, if any. `model` is the
    file's name, without its folder. `passes` are all passes of the pass list, each with whether it
    ran.
    """

    version: int
    model: str
    target: str
    options: Options
    inputs: list[str]
    outputs: list[str]
    layers: list[Layer]
    stages: list[StageInfo]
    kernels: list[KernelInfo]
    regions: list[RegionInfo]
    loops: list[Loop]
    placement: Placement | None
    passes: dict[str, bool]
    seconds: dict[str, float]
    measured: list[str]


# --- panes ---


@dataclass(frozen=True)
class Nodes:
    """The nodes of a stage, as columns, in the order of their lines.

    `kind` is `Call`, `Constant`, `Var`, `Function` and so on; `title` is the operator's name;
    `layers` are those that a node serves, `marks` those whose result it *is*; `inputs` are the
    numbers of the nodes that it reads; `functions` those of the functions that it holds (a fused
    function, branches, parts of a loop); `parent` is the number of the function that contains it
    (-1: the main one); `kernel` is the kernel that computes it (last stage only, else -1); `born`
    is the stage that made it.
    """

    number: list[Number]
    line: list[int]
    kind: list[str]
    title: list[str]
    type: list[str]
    layers: list[list[Number]]
    marks: list[list[Number]]
    inputs: list[list[Number]]
    functions: list[list[Number]]
    parent: list[Number]
    kernel: list[Number]
    born: list[int]


@dataclass(frozen=True)
class RemarkLine:
    """A pass's reason for an action or omission, about a node (-1 if it is in no kept stage)."""

    number: Number
    pass_name: str
    text: str


@dataclass(frozen=True)
class Stage:
    """A stage's graph IR: its text, and the nodes on its lines."""

    index: int
    name: str
    text: str
    nodes: Nodes
    remarks: list[RemarkLine]


@dataclass(frozen=True)
class StageLinks:
    """Links from the stage before, as columns; `same` is 1 if the new node computes the old node's
    value. Nodes in both stages are linked implicitly. Empty for unchanged stages.
    """

    old: list[Number]
    new: list[Number]
    same: list[int]


@dataclass(frozen=True)
class Links:
    """Links between nodes over all stages. `born` and `last` are, by a node's number, the first and
    last stage that has it, and `layers` those it serves; `stages[0]` is empty.

    The stages between them have the node, too, except as listed in `away`: rows of a node's number,
    the first stage without it, and the stage where it is back. Few passes bring a node back.
    """

    born: list[int]
    last: list[int]
    away: list[list[int]]
    layers: list[list[Number]]
    stages: list[StageLinks]


@dataclass(frozen=True)
class ModelEdge:
    """A value that layer `target` reads from layer `source`. A source of -1 stands for the model's
    inputs, a target of -1 for its outputs.
    """

    source: Number
    target: Number
    value: str


@dataclass(frozen=True)
class Source:
    """The model as in its file: its text, one or more lines per layer, and the edges between
    layers.

    `line_layers` gives for each line the layer it is about (-1: none).
    """

    text: str
    line_layers: list[Number]
    edges: list[ModelEdge]


@dataclass(frozen=True)
class Code:
    """A kernel's loop nest, LLVM text and instructions, one line per element.

    `loop_op` gives for each line of the nest the position in the kernel's `ops` that it computes,
    or -1 if it serves all of them (heads of loops that operators share). `llvm_loop` and `asm_loop`
    give the line of the nest behind each line (0: unknown).
    """

    kernel: Number
    loops: list[str]
    loop_op: list[int]
    llvm: list[str]
    llvm_loop: list[int]
    asm: list[str]
    asm_address: list[int]
    asm_loop: list[int]


@dataclass(frozen=True)
class ScheduleStep:
    """A primitive, such as `split(loop='mm.i', factor=12)`, and the loop nest after it.

    `loop_op` is as in `Code`.
    """

    text: str
    primitive: str
    loops: list[str]
    loop_op: list[int]


@dataclass(frozen=True)
class ScheduleView:
    """The recorded schedule of a kernel. Step 0 has no text: it is the nest before all primitives.
    A last step without `primitive` is the simplified nest, from which code is generated.

    `primitives` are all primitives, each with its signature and the first line of its description.
    """

    kernel: Number
    rules: list[str]
    steps: list[ScheduleStep]
    primitives: dict[str, str]


# --- stories and search ---


@dataclass(frozen=True)
class Part:
    """A piece of a sentence. With a `ref` it is a link; `code` is set in a fixed-width font."""

    text: str
    ref: Ref = ""
    code: bool = False


@dataclass(frozen=True)
class Sentence:
    """A sentence of a story, in parts; `level` indents it."""

    parts: list[Part]
    level: int = 0


@dataclass(frozen=True)
class Section:
    """A part of a story under a heading; `kind` selects an icon: import, pass, kernel, time, ..."""

    kind: str
    head: str
    ref: Ref
    sentences: list[Sentence]


@dataclass(frozen=True)
class Story:
    """The story of a layer or kernel, or the origin of a line of code."""

    about: Ref
    title: str
    subtitle: str
    sections: list[Section]


@dataclass(frozen=True)
class Entry:
    """An entry of the search: `kind` is layer, kernel, region, operator, attribute, dtype, shape,
    remark, stage, parameter; `text` is matched and shown, `detail` is shown next to it.
    """

    kind: str
    text: str
    detail: str
    ref: Ref


@dataclass(frozen=True)
class Index:
    """All entries of the search, except lines of panes.

    A value that many nodes share, such as a dtype, is listed with the first few of them. A layer's
    `detail` is its operator type, which is matched as well.
    """

    entries: list[Entry]


# --- two builds ---


@dataclass(frozen=True)
class LayerChange:
    """A layer of one or both builds; -1 if a build lacks it. `kinds` are the kinds of difference
    (weights, fusion, layout, time, values, ...), `sentences` describe them.
    """

    a: Number
    b: Number
    how: str
    kinds: list[str]
    sentences: list[str]
    a_ns: float | None
    b_ns: float | None
    error: float | None


@dataclass(frozen=True)
class Diff:
    """Two builds aligned on layers, in the order of the first."""

    a: str
    b: str
    layers: list[LayerChange]
    kinds: dict[str, int]
    summary: list[str]
    a_wall_ns: float | None
    b_wall_ns: float | None


# --- builds and jobs ---


@dataclass(frozen=True)
class ErrorInfo:
    """A coded error and its location. `layer`, `stage` and `pass_name` may be empty."""

    code: str
    message: str
    layer: str
    stage: str
    pass_name: str
    hint: str


@dataclass(frozen=True)
class BuildInfo:
    """A build in the page: `id` is a, b, c, ...; `model` is a file's name.

    `state` is `compiling`, `ready`, `failed` or `cancelled`. `job` is the job that compiles it.
    """

    id: str
    model: str
    options: Options
    state: Literal["compiling", "ready", "failed", "cancelled"]
    job: str
    error: ErrorInfo | None


@dataclass(frozen=True)
class NewBuild:
    """Requests a build (`POST api/builds`) of a model in `Choices.models`. A file is posted as
    `application/octet-stream`, with `name` and `options` (JSON) in the query.
    """

    model: str
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class NewDiff:
    """Requests the difference of two builds (`POST api/diff`), with times and with errors."""

    a: str
    b: str
    time: bool = True
    numerics: bool = True


@dataclass(frozen=True)
class Started:
    """A started job: its events are at `api/jobs/JOB/events`, its result at `.../result`."""

    job: str


@dataclass(frozen=True)
class Choices:
    """The choices of the form for a new build. `extensions` are files to extend a build with,
    `backends` the names of clew's backends, `suffixes` those of models that can be uploaded.
    """

    targets: list[str]
    precisions: list[str]
    backends: list[str]
    passes: dict[str, str]
    threads: int
    max_upload_bytes: int
    suffixes: list[str]
    models: list[str]
    extensions: list[str]


@dataclass(frozen=True)
class Start:
    """The existing builds. `live` is false in a report, which can neither compile nor measure."""

    version: int
    live: bool
    builds: list[BuildInfo]
    diff: bool
    choices: Choices | None


@dataclass(frozen=True)
class JobEvent:
    """Progress of a job, as a server-sent event: `kind` is progress, done, failed or cancelled.

    `fraction` is None if the end is unknown.
    """

    kind: Literal["progress", "done", "failed", "cancelled"]
    text: str
    fraction: float | None
    error: ErrorInfo | None
    seconds: float


@dataclass(frozen=True)
class ScheduleTrial:
    """The effect of an edited schedule: the kernel's time before and after, measured interleaved;
    whether results have the same bits, and their relative error; the resulting nest and code.
    """

    kernel: Number
    before_ns: float
    after_ns: float
    same_bits: bool
    error: float
    steps: list[ScheduleStep]
    code: Code
