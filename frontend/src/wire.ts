// Written by tools/wire_types.py from src/clew/explorer/schema.py: do not edit.
// It is as long as that schema, which is one format.

export const VERSION = 1;

/**
 * The cost of a part on another backend, in seconds: its work, and the borders that it would
 * then have; or why it cannot run there.
 */
export interface Alternative {
  readonly backend: string;
  readonly seconds: number | null;
  readonly borders: number;
  readonly why_not: string;
}

/**
 * A plan that was measured as a whole: the seconds of a call, or why it failed.
 */
export interface PlacedPlan {
  readonly name: string;
  readonly seconds: number | null;
  readonly failure: string;
  readonly chosen: boolean;
}

/**
 * Neighboring operators on one backend, the CPU included, with their costs in seconds; `basis`
 * says where the costs come from.
 */
export interface PlacedRegion {
  readonly backend: string;
  readonly layers: number[];
  readonly ops: string[];
  readonly seconds: number;
  readonly borders: number;
  readonly basis: string;
  readonly others: Alternative[];
}

/**
 * A measured placement (`clew.place`): the plans measured as a whole, the fastest first, and
 * the parts of the chosen one. `summary` has the size of the problem and the quality of the
 * search.
 */
export interface Placement {
  readonly summary: string;
  readonly plans: PlacedPlan[];
  readonly regions: PlacedRegion[];
}

/**
 * A copy at the border of a region: the value's type, its bytes, and the memory spaces.
 */
export interface RegionCopy {
  readonly value: string;
  readonly bytes: number;
  readonly source: string;
  readonly target: string;
}

/**
 * The details that a region's backend reports. `lines` are the first of `total_lines` lines,
 * whose name is `lines_are`; `line_layers` has the layers of each.
 */
export interface RegionDetails {
  readonly summary: string;
  readonly tables: RegionTable[];
  readonly unit: string;
  readonly tracks: RegionTrack[];
  readonly lines_are: string;
  readonly total_lines: number;
  readonly lines: string[];
  readonly line_layers: number[][];
}

/**
 * A region of the last stage's graph that a backend runs, in the order of `compiled.regions`.
 *
 * `ops` are its operators' names in order and `numbers` their nodes in the last stage; `call` is
 * the number of its call. Regions with equal code have the same number `distinct`. `reads` and
 * `results` are the types of its values at the border, and `copies` those that the program copies
 * there, because the backend has its own memory space; a copy that two regions share is
 * listed at both.
 */
export interface RegionInfo {
  readonly index: number;
  readonly name: string;
  readonly backend: string;
  readonly call: number;
  readonly ops: string[];
  readonly numbers: number[];
  readonly layers: number[];
  readonly distinct: number;
  readonly reads: string[];
  readonly results: string[];
  readonly copies: RegionCopy[];
  readonly described: boolean;
}

/**
 * A table about the inside of a region; `layers` has those of each row.
 */
export interface RegionTable {
  readonly title: string;
  readonly columns: string[];
  readonly rows: string[][];
  readonly layers: number[][];
}

/**
 * A track of a region's timeline, in columns. `total` counts the pieces of work; where there
 * are too many, neighbors are joined: `counts` of them, which work for `busy` units between
 * `begins` and `ends`, and wait for `waited` units before or between. `texts` and `waited_for`
 * are those of the first and of the longest wait.
 */
export interface RegionTrack {
  readonly name: string;
  readonly total: number;
  readonly begins: number[];
  readonly ends: number[];
  readonly counts: number[];
  readonly busy: number[];
  readonly waited: number[];
  readonly waited_for: string[];
  readonly texts: string[];
  readonly layers: number[][];
}

/**
 * A figure for each layer, kernel, line of a loop nest and instruction; None if unknown.
 *
 * `nodes` has the operators of each stage, with their own shares; it is empty for a stage that
 * changed nothing, whose figures are those of the previous stage. `unit` is ns, flop, B, share (of
 * peak, 0 to 1) or relative (error). `lines[k][n]` is that of line n + 1 of kernel k,
 * `instructions` likewise; empty lists if a level is not measured. `runs` is how often each kernel
 * ran per inference, in loops once per iteration, if that was measured; a kernel's figure covers
 * all its runs. `regions` has the figures of regions on other backends, for time only. Shares
 * refer to `total`; `basis` names the measurement or estimate behind the figures.
 */
export interface Heat {
  readonly metric: "time" | "flops" | "bytes" | "peak" | "error" | "quantization";
  readonly unit: string;
  readonly total: number | null;
  readonly layers: (number | null)[];
  readonly kernels: (number | null)[];
  readonly regions: (number | null)[];
  readonly nodes: NodeFigures[];
  readonly lines: ((number | null)[])[];
  readonly instructions: ((number | null)[])[];
  readonly runs: (number | null)[];
  readonly basis: string;
  readonly notes: string[];
}

/**
 * One iteration of a loop, from 0, out of `iterations` (None if that varies). `loop` is the
 * loop's layer.
 */
export interface LoopIteration {
  readonly loop: number;
  readonly iteration: number;
  readonly iterations: number | null;
}

/**
 * Figures of a stage's operators, as columns; operators without a figure are left out.
 */
export interface NodeFigures {
  readonly number: number[];
  readonly figure: number[];
}

/**
 * The cost of a decoder layer, or of another layer, in one call: the bytes of weights and
 * caches that must be read, and the time. `layers` are the model's layers in it. `share` is that
 * of the call's time; `bandwidth_share` is the time to read the bytes at the machine's bandwidth,
 * divided by `ns`.
 */
export interface PartCost {
  readonly layer: string;
  readonly layers: number[];
  readonly weight_bytes: number;
  readonly cache_bytes: number;
  readonly ns: number;
  readonly share: number;
  readonly bandwidth_share: number;
}

/**
 * A summary of a profile: wall time, kernel time, and notes.
 */
export interface Profiled {
  readonly wall_ns: number;
  readonly kernels_ns: number;
  readonly outside_ns: number;
  readonly rounds: number;
  readonly threads: number;
  readonly notes: string[];
}

/**
 * The machine's limits, and the throughput of kernels. `bandwidths` are GB/s by level of
 * memory.
 */
export interface Roofline {
  readonly peak_gflops: number;
  readonly tile_gflops: number | null;
  readonly bandwidths: Record<string, number>;
  readonly threads: number;
  readonly points: RooflinePoint[];
}

/**
 * A kernel under the roofline: `intensity` in FLOP per byte, reached `gflops`, and its limit.
 * It ran `runs` times in a run of the model, for `ns` in total.
 */
export interface RooflinePoint {
  readonly kernel: number;
  readonly intensity: number;
  readonly gflops: number;
  readonly ns: number;
  readonly runs: number;
  readonly limit: string;
  readonly limit_share: number;
}

/**
 * A slice of the timeline: `track` is kernels, operators or layers; `ref` is the thing
 * shown.
 */
export interface Slice {
  readonly track: string;
  readonly start_ns: number;
  readonly ns: number;
  readonly text: string;
  readonly ref: string;
}

/**
 * A call that reads `tokens` tokens after `length` tokens in the caches; `gbps` is the
 * machine's bandwidth for as many bytes as a decode step reads.
 */
export interface StepCost {
  readonly tokens: number;
  readonly length: number;
  readonly ns: number;
  readonly arena_bytes: number;
  readonly gbps: number;
  readonly weight_bytes: number;
  readonly cache_bytes: number;
  readonly bandwidth_share: number;
  readonly parts: PartCost[];
}

/**
 * One run of median times. `slices` of a track follow each other and do not overlap.
 */
export interface Timeline {
  readonly wall_ns: number;
  readonly slices: Slice[];
}

/**
 * The costs of tokens of a language model: the memory of weights, the bytes that each token
 * adds to the caches and those of states of fixed size. Each token in the caches adds `slope_us`
 * to the time of a decode step.
 */
export interface TokenCosts {
  readonly threads: number;
  readonly weight_bytes: number;
  readonly token_bytes: number;
  readonly state_bytes: number;
  readonly slope_us: number;
  readonly decode: StepCost;
  readonly prefill: StepCost;
}

/**
 * A result of a layer in a run: its statistics, and its first elements as text.
 *
 * `outputs` are the numbers of the layer's results. For a layer in loops the value is that of
 * iteration `iteration`, from 0, out of `iterations`, both counted over all entries of the loops;
 * outside loops they are -1 and 0. `path` is the iteration of each surrounding loop, outermost
 * first; it is empty if only a run determines it. In a branch (`in_branch`) only iterations that
 * took the branch count. Statistics cover the finite elements and are None if there are none;
 * `histogram` counts them between `least` and `most`.
 */
export interface Values {
  readonly layer: string;
  readonly output: number;
  readonly outputs: number[];
  readonly type: string;
  readonly iteration: number;
  readonly iterations: number;
  readonly path: LoopIteration[];
  readonly in_branch: boolean;
  readonly elements: number;
  readonly least: number | null;
  readonly most: number | null;
  readonly mean: number | null;
  readonly deviation: number | null;
  readonly zeros: number;
  readonly nans: number;
  readonly infinities: number;
  readonly histogram: number[];
  readonly sample: string[];
}

/**
 * A layer of the user's model. `group` is the path in its name, outermost first, without
 * itself.
 *
 * `fate` is `alive`, `merged`, `folded`, `dead` or similar; `fate_text` describes it in words.
 */
export interface Layer {
  readonly name: string;
  readonly op: string;
  readonly group: string[];
  readonly fate: string;
  readonly fate_text: string;
  readonly kernels: number[];
}

/**
 * A stage on the film strip: `nodes` after it, and its difference to the previous stage.
 *
 * `rewritten` counts replaced nodes, which are in neither `added` nor `removed`. `remarks` counts
 * the pass's remarks.
 */
export interface StageInfo {
  readonly index: number;
  readonly name: string;
  readonly summary: string;
  readonly changed: boolean;
  readonly seconds: number;
  readonly nodes: number;
  readonly added: number;
  readonly removed: number;
  readonly rewritten: number;
  readonly remarks: number;
}

/**
 * One use of a kernel, in order of execution. `ops` are its operators' names in order and
 * `numbers` their nodes in the last stage. Kernels with equal code have the same number
 * `distinct`.
 *
 * `rules` are the chosen schedule rules; `call` is the number of the kernel's call node.
 */
export interface KernelInfo {
  readonly index: number;
  readonly name: string;
  readonly call: number;
  readonly ops: string[];
  readonly numbers: number[];
  readonly layers: number[];
  readonly rules: string[];
  readonly distinct: number;
  readonly shape: string;
  readonly flops: number;
  readonly bytes: number;
  readonly grid: string;
  readonly code_bytes: number;
}

/**
 * A layer that is a loop, or became one (LSTM). `parent` is the place in `Overview.loops` of
 * the loop around it, -1 for none.
 *
 * `iterations` is the trip count of one entry, None if only a run determines it. `layers` are
 * those of its body, including those of nested loops; `kernels` run in it.
 */
export interface Loop {
  readonly layer: number;
  readonly parent: number;
  readonly iterations: number | null;
  readonly layers: number[];
  readonly kernels: number[];
}

/**
 * The rest of the film strip: the size of each level below the graph, over distinct kernels,
 * and the seconds spent making it. `instructions_of` counts those of each kernel of
 * `Overview.kernels`.
 */
export interface CodeTotals {
  readonly loop_lines: number;
  readonly llvm_lines: number;
  readonly instructions: number;
  readonly kernels: number;
  readonly kernel_seconds: number;
  readonly program_seconds: number;
  readonly cached_kernels: number;
  readonly instructions_of: number[];
}

/**
 * The options of a build: those of `clew.compile` that a page may choose, with the same names
 * and defaults, as JSON values. They are written out because the page's types are generated from
 * this class.
 *
 * `extend` names files among those that the command line gave (`Choices.extensions`). A page
 * cannot name others, because they are programs. `schedules` has recorded steps, one per line, by
 * the name of a kernel or a glob. `sizes` has the sizes of free dimensions by name, as on the
 * command line (`1:512`, `128`). `backends` are names; `place` is `first`, `auto`, or texts
 * `backend=layer,...`.
 */
export interface Options {
  readonly target: string;
  readonly threads: number | null;
  readonly opt_level: number;
  readonly precision: string;
  readonly fuse: boolean;
  readonly disabled: string[];
  readonly required: string[];
  readonly keep_f32: string[];
  readonly extend: string[];
  readonly schedules: Record<string, string>;
  readonly shapes: Record<string, number[]>;
  readonly sizes: Record<string, string>;
  readonly backends: string[];
  readonly place: string[];
}

/**
 * The data that the page needs first: layers, stages, kernels, regions and loops of a build; a
 * loop precedes its inner loops.
 *
 * `placement` is the measured placement that the build was compiled with, if any. `model` is the
 * file's name, without its folder. `passes` are all passes of the pass list, each with whether it
 * ran.
 */
export interface Overview {
  readonly version: number;
  readonly model: string;
  readonly target: string;
  readonly options: Options;
  readonly inputs: string[];
  readonly outputs: string[];
  readonly layers: Layer[];
  readonly stages: StageInfo[];
  readonly kernels: KernelInfo[];
  readonly regions: RegionInfo[];
  readonly loops: Loop[];
  readonly placement: Placement | null;
  readonly passes: Record<string, boolean>;
  readonly seconds: Record<string, number>;
  readonly measured: string[];
}

/**
 * The nodes of a stage, as columns, in the order of their lines.
 *
 * `kind` is `Call`, `Constant`, `Var`, `Function` and so on; `title` is the operator's name;
 * `layers` are those that a node serves, `marks` those whose result it *is*; `inputs` are the
 * numbers of the nodes that it reads; `functions` those of the functions that it holds (a fused
 * function, branches, parts of a loop); `parent` is the number of the function that contains it
 * (-1: the main one); `kernel` is the kernel that computes it (last stage only, else -1); `born`
 * is the stage that made it.
 */
export interface Nodes {
  readonly number: number[];
  readonly line: number[];
  readonly kind: string[];
  readonly title: string[];
  readonly type: string[];
  readonly layers: number[][];
  readonly marks: number[][];
  readonly inputs: number[][];
  readonly functions: number[][];
  readonly parent: number[];
  readonly kernel: number[];
  readonly born: number[];
}

/**
 * A pass's reason for an action or omission, about a node (-1 if it is in no kept stage).
 */
export interface RemarkLine {
  readonly number: number;
  readonly pass_name: string;
  readonly text: string;
}

/**
 * A stage's graph IR: its text, and the nodes on its lines.
 */
export interface Stage {
  readonly index: number;
  readonly name: string;
  readonly text: string;
  readonly nodes: Nodes;
  readonly remarks: RemarkLine[];
}

/**
 * Links from the stage before, as columns; `same` is 1 if the new node computes the old node's
 * value. Nodes in both stages are linked implicitly. Empty for unchanged stages.
 */
export interface StageLinks {
  readonly old: number[];
  readonly new: number[];
  readonly same: number[];
}

/**
 * Links between nodes over all stages. `born` and `last` are, by a node's number, the first and
 * last stage that has it, and `layers` those it serves; `stages[0]` is empty.
 *
 * The stages between them have the node, too, except as listed in `away`: rows of a node's number,
 * the first stage without it, and the stage where it is back. Few passes bring a node back.
 */
export interface Links {
  readonly born: number[];
  readonly last: number[];
  readonly away: number[][];
  readonly layers: number[][];
  readonly stages: StageLinks[];
}

/**
 * A value that layer `target` reads from layer `source`. A source of -1 stands for the model's
 * inputs, a target of -1 for its outputs.
 */
export interface ModelEdge {
  readonly source: number;
  readonly target: number;
  readonly value: string;
}

/**
 * The model as in its file: its text, one or more lines per layer, and the edges between
 * layers.
 *
 * `line_layers` gives for each line the layer it is about (-1: none).
 */
export interface Source {
  readonly text: string;
  readonly line_layers: number[];
  readonly edges: ModelEdge[];
}

/**
 * A kernel's loop nest, LLVM text and instructions, one line per element.
 *
 * `loop_op` gives for each line of the nest the position in the kernel's `ops` that it computes,
 * or -1 if it serves all of them (heads of loops that operators share). `llvm_loop` and `asm_loop`
 * give the line of the nest behind each line (0: unknown).
 */
export interface Code {
  readonly kernel: number;
  readonly loops: string[];
  readonly loop_op: number[];
  readonly llvm: string[];
  readonly llvm_loop: number[];
  readonly asm: string[];
  readonly asm_address: number[];
  readonly asm_loop: number[];
}

/**
 * A primitive, such as `split(loop='mm.i', factor=12)`, and the loop nest after it.
 *
 * `loop_op` is as in `Code`.
 */
export interface ScheduleStep {
  readonly text: string;
  readonly primitive: string;
  readonly loops: string[];
  readonly loop_op: number[];
}

/**
 * The recorded schedule of a kernel. Step 0 has no text: it is the nest before all primitives.
 * A last step without `primitive` is the simplified nest, from which code is generated.
 *
 * `primitives` are all primitives, each with its signature and the first line of its description.
 */
export interface ScheduleView {
  readonly kernel: number;
  readonly rules: string[];
  readonly steps: ScheduleStep[];
  readonly primitives: Record<string, string>;
}

/**
 * A piece of a sentence. With a `ref` it is a link; `code` is set in a fixed-width font.
 */
export interface Part {
  readonly text: string;
  readonly ref: string;
  readonly code: boolean;
}

/**
 * A sentence of a story, in parts; `level` indents it.
 */
export interface Sentence {
  readonly parts: Part[];
  readonly level: number;
}

/**
 * A part of a story under a heading; `kind` selects an icon: import, pass, kernel, time, ...
 */
export interface Section {
  readonly kind: string;
  readonly head: string;
  readonly ref: string;
  readonly sentences: Sentence[];
}

/**
 * The story of a layer or kernel, or the origin of a line of code.
 */
export interface Story {
  readonly about: string;
  readonly title: string;
  readonly subtitle: string;
  readonly sections: Section[];
}

/**
 * An entry of the search: `kind` is layer, kernel, region, operator, attribute, dtype, shape,
 * remark, stage, parameter; `text` is matched and shown, `detail` is shown next to it.
 */
export interface Entry {
  readonly kind: string;
  readonly text: string;
  readonly detail: string;
  readonly ref: string;
}

/**
 * All entries of the search, except lines of panes.
 *
 * A value that many nodes share, such as a dtype, is listed with the first few of them. A layer's
 * `detail` is its operator type, which is matched as well.
 */
export interface Index {
  readonly entries: Entry[];
}

/**
 * A layer of one or both builds; -1 if a build lacks it. `kinds` are the kinds of difference
 * (weights, fusion, layout, time, values, ...), `sentences` describe them.
 */
export interface LayerChange {
  readonly a: number;
  readonly b: number;
  readonly how: string;
  readonly kinds: string[];
  readonly sentences: string[];
  readonly a_ns: number | null;
  readonly b_ns: number | null;
  readonly error: number | null;
}

/**
 * Two builds aligned on layers, in the order of the first.
 */
export interface Diff {
  readonly a: string;
  readonly b: string;
  readonly layers: LayerChange[];
  readonly kinds: Record<string, number>;
  readonly summary: string[];
  readonly a_wall_ns: number | null;
  readonly b_wall_ns: number | null;
}

/**
 * A coded error and its location. `layer`, `stage` and `pass_name` may be empty.
 */
export interface ErrorInfo {
  readonly code: string;
  readonly message: string;
  readonly layer: string;
  readonly stage: string;
  readonly pass_name: string;
  readonly hint: string;
}

/**
 * A build in the page: `id` is a, b, c, ...; `model` is a file's name.
 *
 * `state` is `compiling`, `ready`, `failed` or `cancelled`. `job` is the job that compiles it.
 */
export interface BuildInfo {
  readonly id: string;
  readonly model: string;
  readonly options: Options;
  readonly state: "compiling" | "ready" | "failed" | "cancelled";
  readonly job: string;
  readonly error: ErrorInfo | null;
}

/**
 * Requests a build (`POST api/builds`) of a model in `Choices.models`. A file is posted as
 * `application/octet-stream`, with `name` and `options` (JSON) in the query.
 */
export interface NewBuild {
  readonly model: string;
  readonly options: Options;
}

/**
 * Requests the difference of two builds (`POST api/diff`), with times and with errors.
 */
export interface NewDiff {
  readonly a: string;
  readonly b: string;
  readonly time: boolean;
  readonly numerics: boolean;
}

/**
 * A started job: its events are at `api/jobs/JOB/events`, its result at `.../result`.
 */
export interface Started {
  readonly job: string;
}

/**
 * The choices of the form for a new build. `extensions` are files to extend a build with,
 * `backends` the names of clew's backends, `suffixes` those of models that can be uploaded.
 */
export interface Choices {
  readonly targets: string[];
  readonly precisions: string[];
  readonly backends: string[];
  readonly passes: Record<string, string>;
  readonly threads: number;
  readonly max_upload_bytes: number;
  readonly suffixes: string[];
  readonly models: string[];
  readonly extensions: string[];
}

/**
 * The existing builds. `live` is false in a report, which can neither compile nor measure.
 */
export interface Start {
  readonly version: number;
  readonly live: boolean;
  readonly builds: BuildInfo[];
  readonly diff: boolean;
  readonly choices: Choices | null;
}

/**
 * Progress of a job, as a server-sent event: `kind` is progress, done, failed or cancelled.
 *
 * `fraction` is None if the end is unknown.
 */
export interface JobEvent {
  readonly kind: "progress" | "done" | "failed" | "cancelled";
  readonly text: string;
  readonly fraction: number | null;
  readonly error: ErrorInfo | null;
  readonly seconds: number;
}

/**
 * The effect of an edited schedule: the kernel's time before and after, measured interleaved;
 * whether results have the same bits, and their relative error; the resulting nest and code.
 */
export interface ScheduleTrial {
  readonly kernel: number;
  readonly before_ns: number;
  readonly after_ns: number;
  readonly same_bits: boolean;
  readonly error: number;
  readonly steps: ScheduleStep[];
  readonly code: Code;
}

/** What each route answers, by its first word. */
export interface Answers {
  /** `overview`: layers, stages and kernels */
  readonly overview: Overview;
  /** `totals`: the amount of the kernels' code */
  readonly totals: CodeTotals;
  /** `stage/{stage}`: a stage's graph IR */
  readonly stage: Stage;
  /** `links`: links between nodes, stage by stage */
  readonly links: Links;
  /** `source`: the model as in its file */
  readonly source: Source;
  /** `index`: all entries of the search */
  readonly index: Index;
  /** `story/{ref}`: the story of a layer or kernel */
  readonly story: Story;
  /** `schedule/{kernel}`: a kernel's recorded schedule */
  readonly schedule: ScheduleView;
  /** `code/{kernel}`: a kernel's loops, LLVM text and instructions */
  readonly code: Code;
  /** `details/{region}`: a region's inside */
  readonly details: RegionDetails;
  /** `heat/{metric}`: figures to color by, such as time */
  readonly heat: Heat;
  /** `values/{which}`: a layer's value: ITERATION/RESULT/LAYER */
  readonly values: Values;
  /** `roofline`: kernels and the machine's roofline */
  readonly roofline: Roofline;
  /** `timeline`: one run: layers, kernels, operators */
  readonly timeline: Timeline;
  /** `tokens`: the cost of a token of a language model */
  readonly tokens: TokenCosts;
}
