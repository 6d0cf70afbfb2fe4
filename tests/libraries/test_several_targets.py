"""Libraries with the code of several targets."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.libraries import Exported
from clew.machine.target import target_of

from .c_programs import (
    STRICT,
    Array,
    message,
    needs,
    network,
    pointers,
    random_inputs,
    shared_library,
    state_of,
)

pytestmark = needs("gcc", "nm")

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4+amx")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Exported, ctypes.CDLL]:
    model = clew.compile(network())
    # The order is not that of the levels.
    made = model.export_c(tmp_path_factory.mktemp("net"), "net", targets=TARGETS[::-1])
    return model, made, shared_library(made, "-lm")


def own(model: Any, target: str) -> Any:
    """Returns a model for another target."""
    return model.recompiled(target=target_of(target))


def call(net: Any, function: str, *first: int, workspace: Array | None = None) -> tuple[int, bytes]:
    """Calls a function of the library in dirty memory."""
    model, made, library = net
    if workspace is None:
        workspace = np.full(made.workspace_bytes + 1, 0xAB, np.uint8)[1:]
    arrays = [random_inputs(model)["x"], np.zeros((8, 10), np.float32)]
    place = ctypes.c_void_p(workspace.ctypes.data)
    given = (pointers(arrays[:1]), pointers(arrays[1:]), place, None)
    return getattr(library, function)(*first, *given), arrays[1].tobytes()


def test_each_target_has_the_bits_of_a_model_for_it(net: Any) -> None:
    model, _, library = net
    best = library.net_target()
    assert best < 3, "calls choose no target with tiles"
    for number in range(best + 1):
        wanted = own(model, TARGETS[number]).run(random_inputs(model))["y"]
        assert call(net, "net_run_for", number) == (0, wanted.tobytes())
    if best >= 0:
        assert call(net, "net_run_with") == call(net, "net_run_for", best)


def test_a_workspace_keeps_the_choice_but_not_what_was_forced(net: Any) -> None:
    _, made, library = net
    best = library.net_target()
    if best < 1:
        pytest.skip("this machine has one target")
    workspace = np.full(made.workspace_bytes, 0xAB, np.uint8)
    first = call(net, "net_run_with", workspace=workspace)
    assert first[0] == 0
    assert call(net, "net_run_with", workspace=workspace) == first
    assert call(net, "net_run_for", 0, workspace=workspace)[0] == 0
    assert call(net, "net_run_with", workspace=workspace) == first
    for damaged in range(made.workspace_bytes - 128, made.workspace_bytes):
        workspace[damaged] ^= 1
        assert call(net, "net_run_with", workspace=workspace) == first


def test_targets_out_of_range_are_errors(net: Any) -> None:
    library = net[2]
    for number in (-1, 4, 1 << 30):
        assert call(net, "net_run_for", number)[0] == 6
    library.net_error.restype = ctypes.c_char_p
    assert b"no code for this CPU" in library.net_error(6)
    assert library.net_run_with(None, None, None, None) == 1


def test_targets_share_weights_of_equal_bytes(net: Any) -> None:
    model, made, _ = net
    alone = [own(model, target).export_c(made.folder / target, "net") for target in TARGETS]
    most = max(each.weights_bytes for each in alone)
    assert most <= made.weights_bytes < sum(each.weights_bytes for each in alone)
    assert made.workspace_bytes > max(each.workspace_bytes for each in alone)
    readme = (made.folder / "README.md").read_text()
    for target, each in zip(TARGETS, alone, strict=True):
        (row,) = (line for line in readme.splitlines() if line.startswith(f"| `{target}` |"))
        assert f" {each.weights_bytes} " in row
    assert "ARCH_REQ_XCOMP_PERM" in readme


@needs("g++")
def test_the_header_has_the_targets(net: Any, tmp_path: Path) -> None:
    _, made, library = net
    code = (
        '#include "net.h"\n'
        "int main(void) {\n"
        "  int32_t (*run)(int32_t, const net_inputs *, const net_outputs *, void *,\n"
        "                 const net_threads *) = net_run_for;\n"
        "  return run == 0 ? 99 : net_target() + 10 * NET_TARGET_X86_64_V4_AMX;\n}\n"
    )
    (tmp_path / "own.c").write_text(code)
    folder = f"-I{made.folder}"
    library_file = f"{made.folder}/libnet.a"
    command = ["gcc", *STRICT, folder, "own.c", library_file, "-lm", "-o", "own"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./own"], cwd=tmp_path, check=False)
    assert done.returncode == library.net_target() + 30
    command = ["g++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "net.hpp"]
    subprocess.run(command, cwd=made.folder, check=True)


@pytest.mark.parametrize(
    ("cpu", "target"),
    [("core2duo", ""), ("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")],
)
@needs("qemu-x86_64")
def test_the_features_of_the_cpu_decide(net: Any, tmp_path: Path, cpu: str, target: str) -> None:
    model, made, _ = net
    program = str(tmp_path / "main")
    command = ["gcc", *STRICT, "-static", "main.c", "libnet.a", "-lm", "-o", program]
    subprocess.run(command, cwd=made.folder, check=True)
    feed = random_inputs(model)
    feed["x"].tofile(tmp_path / "x.bin")
    # The emulator warns of features that it lacks.
    command = ["qemu-x86_64", "-cpu", cpu, program, "x.bin", "y.bin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if not target:
        assert done.returncode == 1
        assert "error 6: the library has no code for this CPU" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    wanted = own(model, target).run(feed)["y"]
    assert (tmp_path / "y.bin").read_bytes() == wanted.tobytes()


def test_states_sizes_and_weight_files(tmp_path: Path) -> None:
    """A cell with a state, a free size, and an index that may be out of range."""
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows = message(
        [
            helper.make_node("Gather", ["table", "i"], ["r"], name="embedding"),
            helper.make_node("ReduceSum", ["r", "axes"], ["s"], name="total"),
            helper.make_node("Add", ["s", "h"], ["h_next"], name="state"),
        ],
        {"i": ["n"], "h": [1, 3]},
        {"h_next": [1, 3]},
        {"table": table, "axes": np.array([0])},
        kinds={"i": TensorProto.INT64},
    )
    model = clew.compile(rows, sizes={"n": (1, 5)})
    made = model.export_c(
        tmp_path, "net", weights_file=True, state={"h": "h_next"}, targets=TARGETS[:3]
    )
    library = shared_library(made, "-lm")
    if library.net_target() < 0:
        pytest.skip("this machine has no target")
    weights = np.frombuffer((tmp_path / "net.weights.bin").read_bytes() + bytes(8), np.uint64)
    state = state_of(made, library)
    workspace = np.full(made.workspace_bytes, 0xAB, np.uint8)
    memory = [ctypes.c_void_p(a.ctypes.data) for a in (state, workspace)]
    library.net_fault.restype = ctypes.c_char_p
    wanted = np.zeros(3, np.float32)
    for numbers, code in (([0, 3], 0), ([1, 2, 3, 0, 1], 0), ([1, 4], 3), ([2], 0)):
        i = np.array(numbers)
        given = (ctypes.c_int64 * 3)(i.ctypes.data, weights.ctypes.data, len(i))
        for number in range(library.net_target() + 1):
            before = state.copy()
            assert library.net_run_for(number, given, None, *memory, None) == code
            after = state.copy()
            state[:] = before
            if code:
                assert library.net_fault(memory[1]) == b"embedding"
        if code == 0:
            state[:] = after
            wanted += table[i].sum(axis=0)
        np.testing.assert_array_equal(state.view(np.float32)[:3], wanted)


def test_what_is_no_list_of_levels_is_refused(tmp_path: Path) -> None:
    model = clew.compile(network())
    for targets in (["aarch64"], ["x86-64-v3", "cpu"], "x86-64-v3", [""]):
        with pytest.raises(clew.ClewError, match="I474"):
            model.export_c(tmp_path, "net", targets=targets)
    assert not list(tmp_path.iterdir())
