"""The texts beside a library's object: header, example, and what builds and finds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import Template
from typing import Final

from clew.libraries.interface import ERRORS, Interface, Size, Tensor
from clew.version import VERSION


def symbols(interface: Interface) -> list[str]:
    """Returns the names that a library defines."""
    names = ("run", "run_with", "error", "fault", "input_table", "output_table")
    return [f"{interface.prefix}_{name}" for name in names]


_HEADER: Final = Template("""\
/* $name: a model compiled by clew $version for $triple. Generated; do not edit.
 *
 * $name_run reads the inputs, writes the outputs, and uses the workspace for everything else. It
 * allocates nothing and keeps nothing between calls: calls with different workspaces may run at
 * the same time. Arrays are C-contiguous. An output overlaps with no other argument.
 */
#ifndef ${upper}_H
#define ${upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of a workspace, whatever its alignment. Its contents before a call do not matter. */
#define ${upper}_WORKSPACE_BYTES ((size_t)$workspace)
#define ${upper}_N_INPUTS $n_inputs
#define ${upper}_N_OUTPUTS $n_outputs
/* The most threads that ${name}_run_with makes use of. */
#define ${upper}_MAX_THREADS $threads

typedef struct ${name}_inputs {
$inputs
} ${name}_inputs;

typedef struct ${name}_outputs {
$outputs
} ${name}_outputs;

enum {
$errors
};

/* What an input or output is. The shape has `rank` sizes; a scalar's rank is 0. A free size is -1,
 * and `bytes` are those of the largest sizes.
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

/* Part `index` of some work, done by a thread with this number, less than ${upper}_MAX_THREADS. */
typedef void (*${name}_task)(void *work, int64_t index, int64_t thread);

/* The caller's threads. `parallel` calls `task(work, index, thread)` once for each index less than
 * `count`, in any order and in parallel if it likes, and returns when all are done. Parts that run
 * at the same time have different thread numbers.
 */
typedef struct ${name}_threads {
  void (*parallel)(void *context, ${name}_task task, void *work, int64_t count);
  void *context;
} ${name}_threads;

/* Runs the model. Returns ${upper}_OK or an error. */
int32_t ${name}_run(const ${name}_inputs *inputs, const ${name}_outputs *outputs, void *workspace);

/* The same, on the caller's threads. The results have the same bits. */
int32_t ${name}_run_with(const ${name}_inputs *inputs, const ${name}_outputs *outputs,
                         void *workspace, const ${name}_threads *threads);

/* A text for an error. */
const char *${name}_error(int32_t code);

/* The layer whose index was out of range, if the last call with this workspace returned
 * ${upper}_ERROR_INDEX. Otherwise NULL, or any layer.
 */
const char *${name}_fault(const void *workspace);

#ifdef __cplusplus
}
#endif

#endif
""")


def header(interface: Interface, triple: str, workspace_bytes: int, threads: int) -> str:
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
        many_inputs=max(1, len(interface.inputs)),
        many_outputs=max(1, len(interface.outputs)),
        inputs=_fields(interface.inputs, "const ", interface.sizes),
        outputs=_fields(interface.outputs, ""),
        errors=",\n".join(f"  {upper}_{name} = {code}" for code, name in enumerate(ERRORS)),
    )


def _fields(tensors: Sequence[Tensor], qualifier: str, sizes: Sequence[Size] = ()) -> str:
    lines = [
        f"  {qualifier}{tensor.c_type} *{tensor.field}; /* {shown(tensor)} */" for tensor in tensors
    ]
    lines += [
        f"  int64_t {size.field}; /* {quoted(size.name)}: {size.low} to {size.high} */"
        for size in sizes
    ]
    return "\n".join(lines or ["  const void *none; /* there is nothing */"])


def shown(tensor: Tensor) -> str:
    """Returns a tensor's name, dtype and shape for a comment."""
    return f"{quoted(tensor.name)}: {tensor.dtype_name}[{', '.join(map(str, tensor.shape))}]"


def quoted(name: str) -> str:
    """Returns a name for a comment."""
    return json.dumps(name).replace("*/", "*\\/").replace("/*", "/\\*")


_MAIN: Final = Template("""\
/* Runs $name once: main INPUT... OUTPUT...
 *
 * Each argument is a file of the raw elements of an input, then of an output, in the order of the
 * header. Without arguments, all inputs are zeros. Free sizes are the largest.
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
    fprintf(stderr, "%s: not a file of %lu bytes\\n", path, (unsigned long)bytes);
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
  int n, code, failed = 0;
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
  code = (int)${name}_run(&inputs, &outputs, workspace);
  if (code != ${upper}_OK) {
    fprintf(stderr, "error %d: %s\\n", code, ${name}_error(code));
    return 1;
  }
  for (n = ${upper}_N_INPUTS; argc > 1 && n < count; n++) {
    failed |= transfer(argv[1 + n], "wb", data[n],
                       ${name}_output_table[n - ${upper}_N_INPUTS].bytes);
  }
  for (n = 0; n < count; n++) {
    free(data[n]);
  }
  free(workspace);
  return failed;
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
    return _MAIN.substitute(
        name=interface.prefix, upper=interface.prefix.upper(), fields="\n".join(lines)
    )


_CPP: Final = Template("""\
// $name in C++: a model that owns its workspace. Calls of one Model must not overlap in time.
#ifndef ${upper}_HPP
#define ${upper}_HPP

#include "$name.h"

#include <stdexcept>
#include <vector>

class ${name}_model {
 public:
  ${name}_model() : workspace_(${upper}_WORKSPACE_BYTES) {}

  void run(const ${name}_inputs &inputs, const ${name}_outputs &outputs) {
    const int32_t code = ${name}_run(&inputs, &outputs, workspace_.data());
    if (code != ${upper}_OK) {
      throw std::runtime_error(${name}_error(code));
    }
  }

 private:
  std::vector<unsigned char> workspace_;
};

#endif
""")


def cpp(interface: Interface) -> str:
    """Returns the header for C++."""
    return _CPP.substitute(name=interface.prefix, upper=interface.prefix.upper())


_README: Final = Template("""# $name

A model compiled by clew $version for $triple, as a library with a C interface ($name.h).

| | bytes |
|---|---|
| code and tables | $code |
| weights | $weights |
| workspace of a call, given by the caller | $workspace |

$time

Inputs, then outputs:

$tensors

The library needs these functions from others: $undefined.

    cc -std=c99 main.c lib$name.a$more -o main
    ./main INPUT... OUTPUT...

or, for a shared library as well:

    cmake -B build . && cmake --build build

`clew trace FILE --address ADDRESS` names the layers of code at an address. FILE is a shared
library, program or object, not stripped, in the folder of `$name.trace.json`.
""")


def readme(
    interface: Interface,
    triple: str,
    sizes: Sequence[int],
    undefined: Sequence[str],
    time_us: float | None,
) -> str:
    """Returns `README.md`. `sizes` are the bytes of code and tables, weights and workspace;
    `time_us` is that of a call here, if it was measured.
    """
    time = "The time of a call was not measured: the target is another machine."
    if time_us is not None:
        time = (
            f"A call of the compiled model took {time_us:.1f} µs on the machine that exported it."
        )
    code, weights, workspace = sizes
    return _README.substitute(
        name=interface.prefix,
        version=VERSION,
        triple=triple,
        code=code,
        weights=weights,
        workspace=workspace,
        time=time,
        tensors="\n".join(f"- {shown(tensor)}" for tensor in interface.tensors),
        undefined=", ".join(f"`{name}`" for name in undefined) or "none",
        more=" -lm" if needs_libm(undefined) else "",
    )


def needs_libm(undefined: Sequence[str]) -> bool:
    """Whether any of these functions is in C's library of mathematics."""
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
