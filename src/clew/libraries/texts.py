"""The text files of a library: headers, example, README and build files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Final, NamedTuple

from clew.ir.dims import is_unknown
from clew.libraries.entry_targets import ASKED
from clew.libraries.interface import ERRORS, Interface, Size, Tensor
from clew.version import VERSION


class TargetPart(NamedTuple):
    """What one of several targets adds to a library: its kernels, the weights that they read, and
    those of them that no other target's read.
    """

    name: str
    code_bytes: int
    weights_bytes: int
    own_weights_bytes: int

    @property
    def c_name(self) -> str:
        """The name in C, after the prefix."""
        return "TARGET_" + re.sub(r"\W", "_", self.name).upper()


def symbols(interface: Interface, targets: Sequence[TargetPart] = ()) -> list[str]:
    """Returns the names that a library defines."""
    names = ["run", "run_with", "error", "fault", "input_table", "output_table"]
    if interface.states:
        names += ["state_reset", "state_copy", "state_table"]
    if targets:
        names += ["target", "run_for"]
    return [f"{interface.prefix}_{name}" for name in names]


_HEADER: Final = Template("""\
/* $name: a model compiled by clew $version for $triple. Generated; do not edit.
 *
 * $name_run reads the inputs, writes the outputs, and uses the workspace for everything else. It
 * allocates no memory and keeps no state between calls: calls with different workspaces$and_states
 * may run concurrently. Arrays are C-contiguous. An output must not overlap any other argument.
 */
#ifndef ${upper}_H
#define ${upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The size of a workspace, which may have any alignment and any contents before a call. */
#define ${upper}_WORKSPACE_BYTES ((size_t)$workspace)
#define ${upper}_N_INPUTS $n_inputs
#define ${upper}_N_OUTPUTS $n_outputs
/* The maximum number of threads that ${name}_run_with uses. */
#define ${upper}_MAX_THREADS $threads

typedef struct ${name}_inputs {
$inputs
} ${name}_inputs;

${counted}typedef struct ${name}_outputs {
$outputs
} ${name}_outputs;

enum {
$errors
};

/* The type of an input or output. The shape has `rank` sizes, and a scalar has rank 0. Free sizes
 * are -1, data-dependent sizes are -2, and `bytes` is the number of bytes at the largest sizes.
 */
typedef struct ${name}_tensor {
  const char *name;
  const char *dtype;
  const int64_t *shape;
  int32_t rank;
  int32_t element_bytes;
  uint64_t bytes;
} ${name}_tensor;

extern const ${name}_tensor ${name}_input_table[$many_inputs];
extern const ${name}_tensor ${name}_output_table[$many_outputs];
$states
/* Runs part `index` of some work on thread number `thread`, less than ${upper}_MAX_THREADS. */
typedef void (*${name}_task)(void *work, int64_t index, int64_t thread);

/* The caller's threads. `parallel` calls `task(work, index, thread)` exactly once for each index
 * less than `count`, in any order, possibly in parallel, and returns when all calls have returned.
 * Parts that run at the same time must have different thread numbers.
 */
typedef struct ${name}_threads {
  void (*parallel)(void *context, ${name}_task task, void *work, int64_t count);
  void *context;
} ${name}_threads;

/* Runs the model. Returns ${upper}_OK or an error. */
int32_t ${name}_run(const ${name}_inputs *inputs, const ${name}_outputs *outputs,
                    ${state_parameter}void *workspace);

/* The same, on the caller's threads. The results are bit-identical. */
int32_t ${name}_run_with(const ${name}_inputs *inputs, const ${name}_outputs *outputs,
                         ${state_parameter}void *workspace, const ${name}_threads *threads);

$targets/* Returns a message for an error code. */
const char *${name}_error(int32_t code);

/* After ${upper}_ERROR_INDEX of the last call with this workspace, returns the layer whose index
 * was out of range. Otherwise returns NULL or any layer.
 */
const char *${name}_fault(const void *workspace);

#ifdef __cplusplus
}
#endif

#endif
""")


_STATES: Final = Template("""\

/* The state: memory of the caller that calls read and change, with an address that is a multiple
 * of 8. It holds the tensors of ${name}_state_table, in this order, each at a multiple of 64 bytes
 * from its start. It may be copied, saved and restored as bytes. A call that fails does not change
 * it.
 */
#define ${upper}_STATE_BYTES ((size_t)$bytes)
#define ${upper}_N_STATES $count
extern const ${name}_tensor ${name}_state_table[$count];

/* Sets a state to the first one, as it is before the first call. */
int32_t ${name}_state_reset(void *state);

/* Copies a state. */
int32_t ${name}_state_copy(void *to, const void *from);
""")


def _states(interface: Interface) -> str:
    if not interface.states:
        return ""
    return _STATES.substitute(
        name=interface.prefix,
        upper=interface.prefix.upper(),
        bytes=interface.state_bytes,
        count=len(interface.states),
    )


_TARGETS: Final = Template("""\
/* The targets that the library has code for. Each has the features of those before it. */
enum {
$names
};

/* Returns the last target${other} whose features this CPU has,
 * or -1. The calls above use its code, and keep the answer in the workspace for the next call.
 */
int32_t ${name}_target(void);

/* The same as ${name}_run_with, with the code of a target, which is not checked: a CPU without its
 * features stops the program. Results depend on the target as on the machine.
 */
int32_t ${name}_run_for(int32_t target, const ${name}_inputs *inputs,
                        const ${name}_outputs *outputs, ${state_parameter}void *workspace,
                        const ${name}_threads *threads);

""")


def _targets(interface: Interface, targets: Sequence[TargetPart]) -> str:
    if not targets:
        return ""
    upper = interface.prefix.upper()
    names = [f"  {upper}_{target.c_name} = {n}" for n, target in enumerate(targets)]
    asked = [target.c_name for target in targets if target.name == ASKED]
    return _TARGETS.substitute(
        name=interface.prefix,
        names=",\n".join(names),
        other=f" other than {upper}_{asked[0]}" if asked else "",
        state_parameter="void *state, " if interface.states else "",
    )


def header(
    interface: Interface,
    triple: str,
    workspace_bytes: int,
    threads: int,
    targets: Sequence[TargetPart] = (),
) -> str:
    """Returns the header."""
    upper = interface.prefix.upper()
    return _HEADER.substitute(
        name=interface.prefix,
        name_run=f"{interface.prefix}_run",
        upper=upper,
        version=VERSION,
        triple=triple,
        workspace=workspace_bytes,
        threads=threads,
        n_inputs=len(interface.inputs),
        n_outputs=len(interface.outputs),
        states=_states(interface),
        targets=_targets(interface, targets),
        and_states=" and states" if interface.states else "",
        state_parameter="void *state, " if interface.states else "",
        many_inputs=max(1, len(interface.inputs)),
        many_outputs=max(1, len(interface.outputs)),
        inputs=_fields(interface.inputs, "const ", interface.sizes),
        outputs=_fields(interface.outputs, "", (), interface.shape_fields),
        counted=_COUNTED if interface.shape_fields else "",
        errors=",\n".join(f"  {upper}_{name} = {code}" for code, name in enumerate(ERRORS)),
    )


_COUNTED: Final = """\
/* Data-dependent sizes of outputs are written as `?`. The memory of such an output must hold the
 * largest result: `bytes` in the table below. A call writes the shape of the result to `..._shape`;
 * the elements are C-contiguous in this shape.
 */
"""


def _fields(
    tensors: Sequence[Tensor],
    qualifier: str,
    sizes: Sequence[Size] = (),
    shapes: Sequence[tuple[int, str]] = (),
) -> str:
    lines = [
        f"  {qualifier}{tensor.c_type} *{tensor.field}; /* {shown(tensor)} */" for tensor in tensors
    ]
    lines += [
        f"  int64_t {size.field}; /* {quoted(size.name)}: {size.low} to {size.high} */"
        for size in sizes
    ]
    lines += [
        f"  int64_t *{field}; /* the shape of {tensor.field}: {len(tensor.shape)} sizes */"
        for tensor, field in ((tensors[number], field) for number, field in shapes)
    ]
    return "\n".join(lines or ["  const void *none; /* no fields */"])


def shown(tensor: Tensor) -> str:
    """Returns a tensor's name, dtype and shape for a comment."""
    sizes = ", ".join("?" if is_unknown(size) else str(size) for size in tensor.shape)
    most = f", at most {tensor.most} elements" if tensor.is_counted else ""
    return f"{quoted(tensor.name)}: {tensor.dtype_name}[{sizes}]{most}"


def quoted(name: str) -> str:
    """Returns a name for a comment."""
    return json.dumps(name).replace("*/", "*\\/").replace("/*", "/\\*")


_MAIN: Final = Template("""\
/* Runs $name once: main INPUT... OUTPUT...
 *
 * The arguments are files of raw elements: those of the inputs, then those of the outputs, in the
 * order of the header. Without arguments, all inputs are zeros.
 * Free sizes are the largest.$first_state
 */
#include "$name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *memory(uint64_t bytes) {
  void *found = calloc(bytes ? (size_t)bytes : 1, 1);
  if (found == NULL) {
    fprintf(stderr, "out of memory\\n");
    exit(1);
  }
  return found;
}

static int transfer(const char *path, const char *mode, void *data, uint64_t bytes) {
  FILE *file = fopen(path, mode);
  size_t done = 0;
  int closed = -1, longer = 0;
  if (file != NULL) {
    done = mode[0] == 'r' ? fread(data, 1, (size_t)bytes, file)
                          : fwrite(data, 1, (size_t)bytes, file);
    longer = mode[0] == 'r' && fgetc(file) != EOF;
    closed = fclose(file);
  }
  if (file == NULL || done != bytes || longer || closed != 0) {
    fprintf(stderr, "%s: cannot read or write %lu bytes, or the file is longer\\n", path,
            (unsigned long)bytes);
    return 1;
  }
  return 0;
}

static void show(const char *kind, const ${name}_tensor *tensor) {
  int32_t axis;
  printf("%s %s: %s[", kind, tensor->name, tensor->dtype);
  for (axis = 0; axis < tensor->rank; axis++) {
    printf(axis ? ", %ld" : "%ld", (long)tensor->shape[axis]);
  }
  printf("]\\n");
}

int main(int argc, char **argv) {
  void *data[${upper}_N_INPUTS + ${upper}_N_OUTPUTS + 1];
  ${name}_inputs inputs;
  ${name}_outputs outputs;
  void *workspace = memory(${upper}_WORKSPACE_BYTES);
${declared}$shapes  int n, code, failed = 0;
  const int count = ${upper}_N_INPUTS + ${upper}_N_OUTPUTS;
  if (argc != 1 && argc != 1 + count) {
    fprintf(stderr, "usage: %s INPUT... OUTPUT... (%d files)\\n", argv[0], count);
    return 2;
  }
  memset(&inputs, 0, sizeof inputs);
  memset(&outputs, 0, sizeof outputs);
  for (n = 0; n < count; n++) {
    const ${name}_tensor *tensor = n < ${upper}_N_INPUTS
                                       ? &${name}_input_table[n]
                                       : &${name}_output_table[n - ${upper}_N_INPUTS];
    data[n] = memory(tensor->bytes);
    show(n < ${upper}_N_INPUTS ? "input" : "output", tensor);
    if (argc > 1 && n < ${upper}_N_INPUTS) {
      failed |= transfer(argv[1 + n], "rb", data[n], tensor->bytes);
    }
  }
  if (failed) {
    return 1;
  }
$fields
  code = (int)${name}_run(&inputs, &outputs, ${argument}workspace);
  if (code != ${upper}_OK) {
    fprintf(stderr, "error %d: %s\\n", code, ${name}_error(code));
    return 1;
  }
$results  for (n = 0; n < count; n++) {
    free(data[n]);
  }
$freed  free(workspace);
  return failed;
}
""")


_RESULTS: Final = Template("""\
  for (n = ${upper}_N_INPUTS; argc > 1 && n < count; n++) {
    failed |= transfer(argv[1 + n], "wb", data[n],
                       ${name}_output_table[n - ${upper}_N_INPUTS].bytes);
  }
""")

_COUNTED_RESULTS: Final = Template("""\
  for (n = ${upper}_N_INPUTS; n < count; n++) {
    const ${name}_tensor *tensor = &${name}_output_table[n - ${upper}_N_INPUTS];
    const int64_t *found = shapes[n - ${upper}_N_INPUTS];
    uint64_t bytes = (uint64_t)tensor->element_bytes;
    int32_t axis;
    int is_counted = 0;
    for (axis = 0; axis < tensor->rank; axis++) {
      is_counted |= tensor->shape[axis] == -2;
      bytes *= (uint64_t)found[axis];
    }
    if (is_counted) {
      printf("%s:", tensor->name);
      for (axis = 0; axis < tensor->rank; axis++) {
        printf(" %ld", (long)found[axis]);
      }
      printf("\\n");
    }
    if (argc > 1) {
      failed |= transfer(argv[1 + n], "wb", data[n], is_counted ? bytes : tensor->bytes);
    }
  }
""")


def main(interface: Interface) -> str:
    """Returns the example, `main.c`."""
    first = len(interface.inputs)
    lines = [
        f"  {kind}.{tensor.field} = ({qualifier}{tensor.c_type} *)data[{start + n}];"
        for kind, qualifier, start, tensors in (
            ("inputs", "const ", 0, interface.inputs),
            ("outputs", "", first, interface.outputs),
        )
        for n, tensor in enumerate(tensors)
    ]
    lines += [f"  inputs.{size.field} = {size.high};" for size in interface.sizes]
    lines += [f"  outputs.{field} = shapes[{n}];" for n, field in interface.shape_fields]
    prefix, upper, has_state = interface.prefix, interface.prefix.upper(), bool(interface.states)
    counted = bool(interface.shape_fields)
    rank = max((len(tensor.shape) for tensor in interface.outputs), default=0)
    if has_state:
        lines.append(f"  {prefix}_state_reset(state);")
    return _MAIN.substitute(
        name=prefix,
        upper=upper,
        fields="\n".join(lines),
        shapes=f"  static int64_t shapes[{len(interface.outputs)}][{rank}];\n" if counted else "",
        results=(_COUNTED_RESULTS if counted else _RESULTS).substitute(name=prefix, upper=upper),
        first_state=" The state is the initial one." if has_state else "",
        declared=f"  void *state = memory({upper}_STATE_BYTES);\n" if has_state else "",
        argument="state, " if has_state else "",
        freed="  free(state);\n" if has_state else "",
    )


_CPP: Final = Template("""\
// $name in C++: a model that owns its ${owned}workspace. Concurrent calls need separate objects.
#ifndef ${upper}_HPP
#define ${upper}_HPP

#include "$name.h"

#include <stdexcept>
#include <vector>

class ${name}_model {
 public:
  ${name}_model() : ${made}workspace_(${upper}_WORKSPACE_BYTES) {$begun}

  void run(const ${name}_inputs &inputs, const ${name}_outputs &outputs) {
    const int32_t code = ${name}_run(&inputs, &outputs, ${argument}workspace_.data());
    if (code != ${upper}_OK) {
      throw std::runtime_error(${name}_error(code));
    }
  }
$reset
 private:
$member  std::vector<unsigned char> workspace_;
};

#endif
""")


_CPP_RESET: Final = Template("""
  // Returns to the first state.
  void reset() { ${name}_state_reset(state_.data()); }
""")


def cpp(interface: Interface) -> str:
    """Returns the header for C++."""
    prefix, upper, has_state = interface.prefix, interface.prefix.upper(), bool(interface.states)
    return _CPP.substitute(
        name=prefix,
        upper=upper,
        owned="state and " if has_state else "",
        made=f"state_({upper}_STATE_BYTES / 8), " if has_state else "",
        begun=" reset(); " if has_state else "",
        argument="state_.data(), " if has_state else "",
        reset="" if not has_state else _CPP_RESET.substitute(name=prefix),
        member="  std::vector<uint64_t> state_;\n" if has_state else "",
    )


_README: Final = Template("""# $name

A model compiled by clew $version for $triple, as a library with a C interface ($name.h).

| | bytes |
|---|---|
$sizes
$state
$targets$time

$kinds:

$tensors

External functions that the library calls: $undefined.
$tiles
    cc -std=c99 main.c lib$name.a$more -o main
    ./main INPUT... OUTPUT...

Or, with the shared library:

    cmake -B build . && cmake --build build

`clew trace FILE --address ADDRESS` names the layers that the code at an address computes. FILE is a
shared library, program or object, not stripped, in the folder of `$name.trace.json`.
""")


_TILES: Final = """
It uses matrix tiles (Intel AMX). On Linux, a program requests their registers once, before the
first call, with the system call `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`, which are
the numbers 0x1023 and 18.
"""


def readme(
    interface: Interface,
    triple: str,
    sizes: Mapping[str, int],
    undefined: Sequence[str],
    time_us: float | None,
    *,
    has_tiles: bool = False,
    targets: Sequence[TargetPart] = (),
) -> str:
    """Returns `README.md`. `sizes` are rows of a table, in bytes;
    `time_us` is the time of a call on this machine, if it was measured. With `has_tiles`,
    the code uses Intel AMX. `targets` are those that a library chooses from.
    """
    time = "The time of a call was not measured."
    if time_us is not None:
        time = (
            f"A call of the compiled model took {time_us:.1f} µs on the machine that exported it."
        )
    return _README.substitute(
        name=interface.prefix,
        version=VERSION,
        triple=triple,
        sizes="\n".join(f"| {what} | {size} |" for what, size in sizes.items()),
        time=time,
        targets=_target_table(interface, targets),
        state=""
        if not interface.states
        else f"| state, given by the caller | {interface.state_bytes} |\n",
        kinds="Inputs, outputs, and states" if interface.states else "Inputs, then outputs",
        tensors="\n".join(
            f"- {shown(tensor)}"
            for tensor in (*interface.tensors, *(s.tensor for s in interface.states))
        ),
        undefined=", ".join(f"`{name}`" for name in undefined) or "none",
        more=" -lm" if needs_libm(undefined) else "",
        tiles=_TILES if has_tiles else "",
    )


def _target_table(interface: Interface, targets: Sequence[TargetPart]) -> str:
    if not targets:
        return ""
    rows = [
        f"| `{t.name}` | {t.code_bytes} | {t.weights_bytes} | {t.own_weights_bytes} |"
        for t in targets
    ]
    text = (
        "A call chooses the code by the CPU's features, except for calls of "
        f"`{interface.prefix}_run_for`.\n\n"
        "| target | bytes of kernels | bytes of weights | of these, only for this target |\n"
        "|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
    )
    if any(target.name == ASKED for target in targets):
        text += f"Calls do not choose `{ASKED}` by themselves.\n\n"
    return text


def needs_libm(undefined: Sequence[str]) -> bool:
    """Whether any of these functions is in the C math library."""
    return any(not name.startswith(("mem", "__")) for name in undefined)


_CMAKE: Final = Template("""\
cmake_minimum_required(VERSION 3.13)
project($name C)

add_library($name STATIC IMPORTED GLOBAL)
set_target_properties($name PROPERTIES
  IMPORTED_LOCATION "$${CMAKE_CURRENT_SOURCE_DIR}/lib$name.a"
  INTERFACE_INCLUDE_DIRECTORIES "$${CMAKE_CURRENT_SOURCE_DIR}")

add_library(${name}_shared SHARED $name.o)
set_target_properties(${name}_shared PROPERTIES LINKER_LANGUAGE C OUTPUT_NAME $name)
target_link_libraries(${name}_shared PRIVATE "-Wl,-z,defs"$more)

add_executable(${name}_main main.c)
set_target_properties(${name}_main PROPERTIES C_STANDARD 99)
target_link_libraries(${name}_main PRIVATE $name$more)
""")


def cmake(interface: Interface, libm: bool) -> str:
    """Returns `CMakeLists.txt`."""
    return _CMAKE.substitute(name=interface.prefix, more=" m" if libm else "")


_PKG_CONFIG: Final = Template("""\
prefix=$${pcfiledir}

Name: $name
Description: a model compiled by clew $version
Version: $version
Cflags: -I$${prefix}
Libs: -L$${prefix} -l$name$more
""")


def pkg_config(interface: Interface, libm: bool) -> str:
    """Returns the file for pkg-config."""
    return _PKG_CONFIG.substitute(
        name=interface.prefix, version=VERSION, more=" -lm" if libm else ""
    )
