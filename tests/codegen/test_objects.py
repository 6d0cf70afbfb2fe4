import errno
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import pytest
from elftools.elf.elffile import ELFFile

from clew.codegen import objects, workers
from clew.codegen.objects import (
    ObjectCompiler,
    PendingObject,
    compile_modules,
    shared_compiler,
    toolchain,
)
from clew.codegen.worker import PIPELINES, emit_object
from clew.support.errors import ClewWarning, CompileError

TARGET = SimpleNamespace(triple=llvm.get_process_triple(), cpu="x86-64", features="")


def adder(number: int) -> str:
    return (
        f"define i32 @add{number}(i32 %x) {{\n  %p = alloca i32\n  store i32 {number}, ptr %p\n"
        f"  %c = load i32, ptr %p\n  %r = add i32 %x, %c\n  ret i32 %r\n}}\n"
    )


def long_module(functions: int) -> str:
    return "".join(adder(number) for number in range(functions))


def symbols(data: bytes) -> set[str]:
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    return {symbol.name for symbol in table.iter_symbols() if symbol.name}


@pytest.fixture
def compiler() -> Iterator[ObjectCompiler]:
    pool = ObjectCompiler(2)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))


def test_objects_come_in_the_order_of_their_modules(compiler: ObjectCompiler) -> None:
    texts = [adder(number) * 1 for number in range(30)]
    seen: dict[int, bytes] = {}
    result = compiler.compile(texts, TARGET, on_done=lambda i, data: seen.update({i: data}))
    for number, data in enumerate(result):
        assert f"add{number}" in symbols(data)
        assert seen[number] == data


def test_the_same_text_gives_the_same_bytes(compiler: ObjectCompiler) -> None:
    texts = [long_module(number) for number in range(1, 12)]
    first = compiler.compile(texts, TARGET)
    assert compiler.compile(texts[::-1], TARGET)[::-1] == first
    assert compile_modules(texts, TARGET) == first


def test_modules_larger_than_a_pipe(compiler: ObjectCompiler) -> None:
    table = "@table = constant [300000 x i8] zeroinitializer\n"
    texts = [adder(1) + table + f"; {number} ".ljust(300_000) for number in range(4)]
    result = compiler.compile(texts, TARGET)
    assert len(result[0]) > 300_000
    assert "add1" in symbols(result[0])
    assert result[1:] == result[:1] * 3


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_pipelines(compiler: ObjectCompiler, pipeline: str) -> None:
    (data,) = compiler.compile([adder(1)], TARGET, pipeline=pipeline)
    text = ELFFile(io.BytesIO(data)).get_section_by_name(".text").data()
    (plain,) = compiler.compile([adder(1)], TARGET, pipeline="none")
    spilled = ELFFile(io.BytesIO(plain)).get_section_by_name(".text").data()
    if pipeline == "none":
        assert text == spilled
    else:
        assert len(text) < len(spilled)  # the stack slot is gone
    assert pipeline in toolchain(pipeline)


STREAMS = """
define void @f(ptr %p, i64 %stride, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = mul i64 %i, %stride
  %a = getelementptr float, ptr %p, i64 %at
  store float 1.0, ptr %a
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


def test_pipelines_do_not_depend_on_what_was_compiled_before() -> None:
    def text(pipeline: str) -> bytes:
        data = emit_object(STREAMS, TARGET.triple, TARGET.cpu, TARGET.features, pipeline)
        code: bytes = ELFFile(io.BytesIO(data)).get_section_by_name(".text").data()
        return code

    fast, quick = text("fast"), text("quick")
    assert fast != quick  # strength reduction turns the product into a sum
    assert [text("fast"), text("quick"), text("quick"), text("fast")] == [fast, quick, quick, fast]


LINES = """
define i32 @f(ptr %p) !dbg !4 {
  %slot = alloca i32
  %a = load i32, ptr %p, !dbg !7
  store i32 %a, ptr %slot, !dbg !8
  %b = load i32, ptr %slot, !dbg !8
  %c = mul i32 %b, %b, !dbg !9
  ret i32 %c, !dbg !10
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, emissionKind: LineTablesOnly)
!1 = !DIFile(filename: "kernel.loops", directory: ".")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = !{i32 2, !"Dwarf Version", i32 4}
!4 = distinct !DISubprogram(name: "f", file: !1, type: !5, unit: !0, spFlags: DISPFlagDefinition)
!5 = !DISubroutineType(types: !6)
!6 = !{null}
!7 = !DILocation(line: 11, column: 3, scope: !4)
!8 = !DILocation(line: 12, column: 3, scope: !4)
!9 = !DILocation(line: 13, column: 5, scope: !4)
!10 = !DILocation(line: 14, column: 1, scope: !4)
"""


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_debug_lines_survive(compiler: ObjectCompiler, pipeline: str) -> None:
    (data,) = compiler.compile([LINES], TARGET, pipeline=pipeline)
    dwarf = ELFFile(io.BytesIO(data)).get_dwarf_info()
    (unit,) = dwarf.iter_CUs()
    program = dwarf.line_program_for_CU(unit)
    lines = {entry.state.line for entry in program.get_entries() if entry.state is not None}
    assert {11, 13, 14} <= lines


def test_a_module_that_llvm_rejects(compiler: ObjectCompiler, tmp_path: Path) -> None:
    good = compiler.submit(adder(1), TARGET)
    bad = compiler.submit("define void @f( {", TARGET)
    with pytest.raises(CompileError, match="expected type") as caught:
        bad.result()
    assert caught.value.code == "C001"
    kept = re.search(r"kept in (\S+)", caught.value.hint)
    assert kept is not None
    assert Path(kept[1]).parent == tmp_path
    assert Path(kept[1]).read_text() == "define void @f( {"
    assert "add1" in symbols(good.result())
    unverified = "define i32 @f() {\n  %a = add i32 %b, 1\n  %b = add i32 %a, 1\n  ret i32 %b\n}\n"
    with pytest.raises(CompileError, match="does not dominate"):
        compiler.compile([unverified], TARGET)


def test_a_module_that_kills_the_compiler(compiler: ObjectCompiler) -> None:
    deadly = SimpleNamespace(triple=TARGET.triple, cpu="no-such-cpu", features="")
    victims = [compiler.submit(adder(number), TARGET) for number in range(5)]
    killer = compiler.submit(adder(99), deadly)
    victims += [compiler.submit(adder(number), TARGET) for number in range(5, 10)]
    with pytest.raises(CompileError, match="no-such-cpu") as caught:
        killer.result()
    assert caught.value.code == "C001"
    for number, victim in enumerate(victims):
        assert f"add{number}" in symbols(victim.result())


def test_a_killed_worker_is_replaced(compiler: ObjectCompiler) -> None:
    for _ in range(3):
        jobs = [compiler.submit(long_module(60), TARGET) for _ in range(6)]
        for worker in compiler._workers:
            worker.process.kill()
        first, *others = [job.result() for job in jobs]
        assert others == [first] * 5


def test_ended_workers_get_no_jobs(compiler: ObjectCompiler) -> None:
    """Else a job counts as an attempt of each of several workers that are killed together."""
    compiler.compile([adder(0), adder(1)], TARGET)
    job = compiler.submit(long_module(20), TARGET)
    (at_work, idle) = sorted(compiler._workers, key=lambda worker: not worker.jobs)
    for worker in (at_work, idle):
        worker.process.kill()
        worker.process.wait()
    compiler._bury(at_work)
    compiler._feed(1)
    assert not idle.jobs
    job.result()
    assert job.attempts == 1


def test_a_module_whose_workers_are_killed(compiler: ObjectCompiler) -> None:
    """The message blames neither LLVM nor clew."""
    job = compiler.submit(long_module(60), TARGET)
    while not job.done:
        for worker in compiler._workers:
            if worker.ready and job in worker.jobs:
                worker.process.kill()
        compiler._exchange(1.0, depth=1)
    with pytest.raises(CompileError, match="2 compile workers were killed") as caught:
        job.result()
    assert caught.value.code == "C002"


@pytest.mark.parametrize("place", ["_feed", "_take"])
def test_an_interrupt_leaves_no_confusion(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C may strike anywhere; what is compiled afterwards must be what was asked for."""
    original = getattr(ObjectCompiler, place)

    def interrupted(self: ObjectCompiler, *arguments: object) -> None:
        original(self, *arguments)
        if any(worker.jobs for worker in self._workers):
            raise KeyboardInterrupt

    jobs = [PendingObject(compiler, adder(number), TARGET, "fast") for number in range(9)]
    compiler._queue.extend(jobs)
    compiler._unfinished.update(dict.fromkeys(jobs))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectCompiler, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.wait_for(*jobs)
    late = [compiler.submit(adder(number), TARGET) for number in range(20, 30)]
    for number, job in enumerate(late, 20):
        assert f"add{number}" in symbols(job.result())
    for number, job in enumerate(jobs):
        assert f"add{number}" in symbols(job.result())


def test_workers_are_recycled(compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_REQUESTS_PER_WORKER", 3)
    compiler.warm_up()
    before = {worker.process.pid for worker in compiler._workers}
    assert len(compiler.compile([adder(n) for n in range(20)], TARGET)) == 20
    assert not before & {worker.process.pid for worker in compiler._workers}
    assert len(compiler._workers) == 2


def test_where_no_process_can_be_started(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compiler.compile([adder(1), adder(2)], TARGET)

    def forbidden(*arguments: object, **options: object) -> None:
        raise PermissionError("no processes here")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr("clew.codegen.worker.configure_llvm", lambda: None)
    monkeypatch.setattr(workers, "_warned", {"once"})
    alone = ObjectCompiler(2)
    assert alone.compile([adder(1), adder(2)], TARGET) == expected
    with pytest.raises(CompileError, match="expected type"):
        alone.compile(["define void @f( {"], TARGET)


def test_a_worker_that_does_not_start(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('llvmlite is missing')"]
    monkeypatch.setattr(compiler, "_command", lambda: command)
    monkeypatch.setattr("clew.codegen.worker.configure_llvm", lambda: None)
    monkeypatch.setattr(workers, "_warned", set())
    with pytest.warns(ClewWarning, match="llvmlite is missing") as caught:
        first, _ = [compiler.compile([adder(n)], TARGET) for n in (1, 2)]  # and says so once
    assert "add1" in symbols(first[0])
    assert [w.message.code for w in caught] == ["C004"]


@pytest.mark.parametrize(
    "ending", ["raise MemoryError", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_workers_that_memory_keeps_from_starting(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    command = [sys.executable, "-c", ending]
    monkeypatch.setattr(compiler, "_command", lambda: command)
    monkeypatch.setattr(workers, "_warned", {"once"})
    with pytest.raises(CompileError, match="did not start") as caught:
        compiler.compile([adder(1)], TARGET)
    assert caught.value.code == "C002"


def test_a_worker_that_says_nothing(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(compiler, "_command", lambda: command)
    monkeypatch.setattr(workers, "_START_PATIENCE_S", 0.01)
    monkeypatch.setattr(workers, "_warned", {"once"})
    with pytest.raises(CompileError, match="did not start"):
        compiler.compile([adder(1)], TARGET)


def test_where_the_second_worker_cannot_be_started(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def one(*arguments: Any, **options: Any) -> Any:
        if started:
            raise OSError(errno.EMFILE, "too many open files")
        started.append(popen(*arguments, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", one)
    monkeypatch.setattr(workers, "_warned", set())
    with pytest.warns(ClewWarning, match="too many open files.*1 of 2 processes"):
        assert len(compiler.compile([adder(n) for n in range(5)], TARGET)) == 5
    assert len(compiler._workers) == 1


def test_a_worker_without_room_for_temporary_files(
    compiler: ObjectCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(workers, "scratch_file", full)
    assert "add1" in symbols(compiler.compile([adder(1)], TARGET)[0])


def test_several_threads_compile(compiler: ObjectCompiler) -> None:
    results: dict[int, bytes] = {}

    def work(number: int) -> None:
        (results[number],) = compiler.compile([adder(number)], TARGET)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"add{number}" in symbols(results[number]) for number in range(8))


def test_a_forked_child_compiles_with_workers_of_its_own() -> None:
    shared_compiler().close()  # a test before may have ended one of its workers
    expected = compile_modules([adder(1)], TARGET)
    parents = {worker.process.pid for worker in shared_compiler()._workers}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            same = compile_modules([adder(1)], TARGET) == expected
            mine = {worker.process.pid for worker in shared_compiler()._workers}
            shared_compiler().close()
            code = 0 if same and not mine & parents else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert compile_modules([adder(1)], TARGET) == expected
    assert parents == {worker.process.pid for worker in shared_compiler()._workers}


def test_workers_end_with_their_process() -> None:
    program = (
        "from clew.codegen.objects import shared_compiler\n"
        "shared_compiler().warm_up()\n"
        "print(*[worker.process.pid for worker in shared_compiler()._workers])\n"
    )
    for ending in ("", "import os, sys; sys.stdout.flush(); os._exit(0)"):
        result = subprocess.run(
            [sys.executable, "-c", program + ending], capture_output=True, text=True, check=True
        )
        pids = result.stdout.split()
        assert pids
        deadline = time.monotonic() + 10
        while any(_runs(pid) for pid in pids):
            assert time.monotonic() < deadline, "a worker outlives its process"
            time.sleep(0.01)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_needs_llvmlite_and_the_standard_library_only() -> None:
    command = objects._python_command()
    command[-1] = command[-1].replace(
        "worker.serve()", "print(*(n for n in sys.modules if '.' not in n))"
    )
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "llvmlite" in loaded
    assert not loaded & {"clew", "numpy", "onnx"}
    assert loaded - {"llvmlite", "worker", "__main__"} <= set(sys.stdlib_module_names)


def test_emit_object_for_another_machine() -> None:
    data = emit_object(adder(1), "aarch64-unknown-linux-gnu", "generic", "")
    assert ELFFile(io.BytesIO(data)).get_machine_arch() == "AArch64"
