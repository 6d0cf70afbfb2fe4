"""Feeds damaged files to clew by the hundred thousand, and counts how they end.

    python tools/mutate.py 100000 --out runs/mutants     continues a stopped run
    python tools/mutate.py 1 --from 4711 --show          one mutant again, with its traceback
    python tools/mutate.py 100000 --tflite               of TFLite files
    python tools/mutate.py 100000 --gguf                 of GGUF files
    python tools/mutate.py 100000 --folder               of folders of a language model

Each mutant is read; a share of the readable ones is compiled with small budgets and run behind
guard pages. Every outcome except a result or a coded error is a defect: an exception without a
code, the death of the process, more than five seconds of CPU time, and any file, process or
connection outside the folder of the model. The files of the first mutant of each defect are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hostile import folder_corpus, gguf_corpus, tflite_corpus
from hostile.corpus import Seed, seeds
from hostile.probe import Ending, Probe, Watch, lay_out

LIMIT_S: Final = 5.0
# Others may use the machine meanwhile, and a process may sleep, so the limit is of CPU time.
WALL_LIMIT_S: Final = 60.0
ADDRESS_SPACE_BYTES: Final = 6 << 30
# A worker is replaced after this many, so that its leaks are not attributed to a mutant.
PER_WORKER: Final = 2000
KEPT_EXAMPLES: Final = 5
_STATE: Final = struct.Struct("<qdd")
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass
class Result:
    """The counts of a run; the next run continues from its file."""

    seed: int
    first: int
    next: int
    share: float
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)
    defects: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, number: int, ending: Ending, seconds: float) -> bool:
        """Counts a mutant; whether it is the first of a defect."""
        self.next = number + 1
        self.kinds[ending.kind] += 1
        if ending.kind == "coded":
            self.codes[ending.code] += 1
            examples = self.examples.setdefault(ending.code, [])
            if len(examples) < KEPT_EXAMPLES:
                examples.append(number)
        if seconds > self.slowest[0]:
            self.slowest = (round(seconds, 3), number)
        if not ending.key:
            return False
        first = ending.key not in self.defects
        entry = {"count": 0, "first": number, "message": ending.message[-3000:]}
        self.defects.setdefault(ending.key, entry)["count"] += 1
        return first

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values, with the commit that was attacked."""
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        plain = {k: v for k, v in vars(self).items() if not isinstance(v, Counter)}
        counts = {"kinds": dict(self.kinds), "codes": dict(sorted(self.codes.items()))}
        return {"commit": commit, **plain, **counts}


def resumed(path: Path, seed: int, first: int, share: float) -> Result:
    """Returns the result of a run that was stopped, or an empty one."""
    if not path.exists():
        return Result(seed, first, first, share)
    stored = json.loads(path.read_text())
    stored.pop("commit")
    result = Result(
        **{**stored, "kinds": Counter(stored["kinds"]), "codes": Counter(stored["codes"])}
    )
    result.slowest = tuple(stored["slowest"])
    return result


class Shepherd:
    """Starts workers one after another, watches their work, and records how it ended."""

    def __init__(self, corpus: list[Seed], result: Result, out: Path | None) -> None:
        self.result = result
        self._corpus = corpus
        self._out = out
        self._state = mmap.mmap(-1, _STATE.size)  # number of the mutant, its start: wall, CPU
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        lay_out(self._folder)
        self._probe = Probe(corpus, self._folder, result.seed, result.share)

    def run(self, count: int, report: float = 10.0) -> None:
        """Tries mutants until so many are done."""
        end, start = self.result.first + count, time.perf_counter()
        said = start
        try:
            while self.result.next < end:
                self._worker(min(end, self.result.next + PER_WORKER))
                now = time.perf_counter()
                self.result.seconds += now - start
                start = now
                self._save()
                if now - said > report:
                    said = now
                    kinds = dict(self.result.kinds)
                    print(f"{self.result.next}: {kinds}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _worker(self, end: int) -> None:
        out, into = os.pipe()
        self._state[:] = _STATE.pack(self.result.next, time.monotonic(), 0.0)
        child = os.fork()
        if child == 0:
            os.close(out)
            _work(self._probe, self.result.next, end, into, self._state)
        os.close(into)
        os.set_blocking(out, False)
        lines, hung = b"", False
        while not hung:
            try:
                piece = os.read(out, 1 << 16)
                if not piece:
                    break
                lines += piece
            except BlockingIOError:
                time.sleep(0.02)
                hung = self._hangs(child)
        if hung:
            _kill_tree(child)
        os.close(out)
        _, status, usage = os.wait4(child, 0)
        self.result.cpu_seconds += usage.ru_utime + usage.ru_stime
        for line in lines.splitlines():
            number, seconds, *fields = json.loads(line)
            self._note(number, Ending(*fields), seconds)
        code = os.waitstatus_to_exitcode(status)
        if hung or code:
            number = _STATE.unpack(self._state)[0]
            kind = "hang" if hung else "crash"
            said = f"no end after {LIMIT_S} s" if hung else f"exit code {code}"
            name = self._probe.files(number)[0].name
            self._note(number, Ending(kind, key=f"{kind} {said}: {name}", message=said), LIMIT_S)

    def _hangs(self, child: int) -> bool:
        _, wall, cpu = _STATE.unpack(self._state)
        if time.monotonic() - wall < LIMIT_S:
            return False
        used: float = _cpu_seconds(child) - cpu
        return used > LIMIT_S or time.monotonic() - wall > WALL_LIMIT_S

    def _note(self, number: int, ending: Ending, seconds: float) -> None:
        if self.result.note(number, ending, seconds) and self._out is not None:
            folder = self._out / f"{ending.kind}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in self._probe.files(number)[1].items():
                (folder / name).write_bytes(data)
            (folder / "why.txt").write_text(f"{ending.key}\n\n{ending.message}\n")

    def _save(self) -> None:
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.result.to_json(), indent=1)
            (self._out / "result.json").write_text(text)


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kill_tree(child: int) -> None:
    """Ends a worker with the compile workers it has started: they share its group."""
    os.killpg(child, signal.SIGKILL)


def _work(probe: Probe, first: int, end: int, into: int, state: mmap.mmap) -> None:
    """Tries mutants in this process, which ends with them."""
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(probe.folder / "model")
        places = [ROOT, sys.prefix, sys.base_prefix, sysconfig.get_paths()["purelib"]]
        readable = (*map(str, places), "/proc", "/sys", "/usr/lib", "/lib")
        watch = Watch((str(probe.folder / "model"), os.devnull), readable)
        watch.install()
        tempfile.tempdir = str(probe.folder / "model")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if "--show" not in sys.argv:
            os.dup2(quiet, 2)
        for number in range(first, end):
            cpu = time.process_time()
            state[:] = _STATE.pack(number, time.monotonic(), cpu)
            ending = probe.try_one(number, watch)
            seconds = round(time.process_time() - cpu, 4)
            fields = [ending.kind, ending.code, ending.key, ending.message]
            os.write(into, json.dumps([number, seconds, *fields]).encode() + b"\n")
    except BaseException as error:
        os.write(2, f"mutate: {error!r}\n".encode())
        os._exit(3)
    from clew.codegen import objects  # noqa: PLC0415

    objects.shared_compiler().close()
    os._exit(0)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, help="total mutants, including those of earlier runs")
    parser.add_argument("--out", type=Path, help="folder of the result and of defects' files")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (default: 1)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first one's number")
    parser.add_argument(
        "--share", type=float, default=0.4, help="share of loadable mutants to compile"
    )
    parser.add_argument("--quick", action="store_true", help="a small corpus")
    parser.add_argument("--tflite", action="store_true", help="mutate TFLite files")
    parser.add_argument("--gguf", action="store_true", help="mutate GGUF files")
    parser.add_argument("--folder", action="store_true", help="mutate a language model's folder")
    parser.add_argument("--files", type=Path, help="a folder of more TFLite files")
    parser.add_argument("--show", action="store_true", help="print every outcome")
    given = parser.parse_args()
    if given.gguf:
        corpus = gguf_corpus.seeds()
    elif given.folder:
        corpus = folder_corpus.seeds()
    else:
        corpus = tflite_corpus.seeds(given.files) if given.tflite else seeds(given.quick)
    path = (given.out or Path("none")) / "result.json"
    result = resumed(path, given.seed, given.first, given.share)
    gc.freeze()
    shepherd = Shepherd(corpus, result, given.out)
    shepherd.run(given.count)
    print(json.dumps(result.to_json(), indent=1))
    return 1 if result.defects else 0


if __name__ == "__main__":
    sys.exit(main())
