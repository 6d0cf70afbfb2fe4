"""What is done with a mutant, and who watches it: reads it, compiles some, runs those."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
from clew.loop.schedule import Schedule
from clew.runtime.container import read_container, write_container
from clew.runtime.drawing import draw as draw_inputs
from clew.runtime.guard import GuardSide
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from hostile import folder_corpus, folder_mutants, gguf_mutants, mutants, tflite_mutants
from hostile.codes import OURS
from hostile.corpus import Seed, network
from hostile.folder_mutants import fields
from hostile.mutants import INTS, blind

BUDGETS: Final = Budgets(
    file_bytes=1 << 24, nodes=5_000, nesting=16, functions=200, opsets=100, values=5_000,
    name_chars=2_000, text_chars=1 << 22, attribute_bytes=1 << 20, rank=16, tensor_bytes=1 << 22,
    total_bytes=1 << 25, folded_operations=1 << 24, run_bytes=1 << 24, run_operations=1 << 26,
    loop_steps=300,
)  # fmt: skip
_MUTANTS: Final = {
    "onnx": mutants.mutant,
    "tflite": tflite_mutants.mutant,
    "gguf": gguf_mutants.mutant,
    "folder": folder_mutants.mutant,
}
SECRET: Final = b"SECRETSECRETSECRET" * 8


@dataclass
class Ending:
    """How a mutant ended: `key` distinguishes defects."""

    kind: str
    code: str = ""
    key: str = ""
    message: str = ""


@dataclass
class Watch:
    """An audit hook that records accesses by clew outside the allowed folders."""

    writable: tuple[str, ...]
    readable: tuple[str, ...]
    seen: list[str] = field(default_factory=list)
    active: bool = False

    def install(self) -> None:
        """Adds the hook, for the rest of the process's life."""
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Notes an event that must not be."""
        if self.active and (wrong := self._wrong(event, arguments)):
            self.seen.append(f"{event} {wrong}")

    def _wrong(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            return self._opened(*arguments)
        if event in _CHANGES:
            paths = [a for a in arguments if isinstance(a, (str, bytes))]
            return next((str(p) for p in paths if not self._inside(p, self.writable)), "")
        if event == "subprocess.Popen":
            return "" if arguments[0] == sys.executable else repr(arguments[:2])
        return repr(arguments)[:200] if event.startswith(_NEVER) else ""

    def _opened(self, path: Any, mode: Any, flags: Any) -> str:
        if not isinstance(path, (str, bytes)):
            return ""  # a descriptor that is open already
        name = os.fsdecode(path)
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        step = os.sep not in name and name not in ("", ".", "..")
        if step and not writes and flags & os.O_NOFOLLOW:
            return ""  # within a folder that is open, and no link
        allowed = self.writable if writes else (*self.writable, *self.readable)
        return "" if self._inside(name, allowed) else f"{name!r} with flags {flags:#o}"

    def _inside(self, path: str | bytes, folders: tuple[str, ...]) -> bool:
        full = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        return any(full == f or full.startswith(f + os.sep) for f in folders)


_CHANGES: Final = frozenset(
    (
        "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate",
        "os.chmod", "os.chown", "os.utime", "shutil.rmtree", "shutil.move", "shutil.copyfile",
    )
)  # fmt: skip
_NEVER: Final = (
    "socket.", "os.system", "os.exec", "os.posix_spawn", "urllib.", "ftplib.", "pickle.find_class",
    "webbrowser.", "os.startfile", "smtplib.", "http.",
)  # fmt: skip


def lay_out(folder: Path) -> None:
    """Puts traps around and into a model's folder (`folder/model`)."""
    room = folder / "model"
    room.mkdir(parents=True, exist_ok=True)
    (folder / "secret.bin").write_bytes(SECRET)
    for link, target in (("link.bin", "../secret.bin"), ("linked", "..")):
        if not (room / link).is_symlink():
            (room / link).symlink_to(target)
    if not (room / "hard.bin").exists():
        os.link(folder / "secret.bin", room / "hard.bin")
    if not (room / "pipe").exists():
        os.mkfifo(room / "pipe")


@dataclass
class Probe:
    """Makes mutants and tries them in a folder. `share` of what loads is compiled and run."""

    seeds: list[Seed]
    folder: Path
    seed: int
    share: float

    def __post_init__(self) -> None:
        self._models = [s.data for s in self.seeds if s.kind in _MUTANTS]
        _nest()  # the first compilation of a process reads the machine's costs from the cache
        if any(s.kind == "folder" for s in self.seeds):
            _decoder()  # before a worker limits what may be read

    def files(self, number: int) -> tuple[Seed, dict[str, bytes], random.Random]:
        """Returns a mutant's files, their origin, and the random state for further draws."""
        draw = random.Random(f"{self.seed}:{number}")
        seed = draw.choice(self.seeds)
        files = dict(seed.files)
        names = sorted(files)
        name = seed.main if draw.random() < 0.85 else draw.choice(names)
        if seed.kind in _MUTANTS and name == seed.main:
            files[name] = _MUTANTS[seed.kind](files[name], self._models, draw)
        else:
            files[name] = blind(files[name], files[draw.choice(names)], draw)
        return seed, files, draw

    def try_one(self, number: int, watch: Watch) -> Ending:
        """Returns how a mutant ended."""
        seed, files, draw = self.files(number)
        for name, data in files.items():
            (self.folder / "model" / name).write_bytes(data)
        watch.seen.clear()
        watch.active = True
        try:
            with warnings.catch_warnings(), in_force(BUDGETS), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                ending = Ending(self._attack(seed, draw))
        except ClewError as error:
            ending = Ending("coded", error.code)
            if error.code in OURS or isinstance(error.__cause__, AssertionError):
                ending = Ending(
                    "uncoded", error.code, f"{error.code} {error.message[:60]}", str(error)
                )
        except BaseException as error:
            ending = _uncoded(error)
        finally:
            watch.active = False
        if watch.seen:
            what = watch.seen[0]
            ending = Ending(
                "forbidden", key=f"forbidden {what[:80]}", message="\n".join(watch.seen)
            )
        return ending

    def _attack(self, seed: Seed, draw: random.Random) -> str:
        path = self.folder / "model" / seed.main
        match seed.kind:
            case "saved":
                return self._saved(path, draw)
            case "steps":
                return _steps(path)
            case "folder":
                return self._folder(path.parent, draw)
            case "text":
                module = clew.load(path.with_suffix(".txt"))
            case _:
                module = clew.load(path)
                if seed.name.startswith("external"):
                    _keeps_secret(module)
        if draw.random() >= self.share:
            return "loaded"
        side = draw.choice((GuardSide.START, GuardSide.END))
        compiled = clew.compile(
            module if seed.kind == "text" else path,
            opt_level=draw.choice((1, 1, 3)),
            threads=1,
            cache=False,
            diagnostics=clew.Diagnostics(guard=side),
            limits=BUDGETS,
        )
        compiled.run(_inputs(compiled, seed, draw))
        return "ran"

    def _folder(self, folder: Path, draw: random.Random) -> str:
        """Reads a language model and its texts; generates some tokens with a share of them."""
        module = clew.load(folder)
        model = clew.language_model(_decoder(), folder=folder)
        ids = model.encode("hé\n")
        model.decode([*ids, 1, 259])
        if draw.random() >= self.share:
            return "loaded"
        if draw.random() < 0.3:
            made = clew.compile(module, opt_level=1, threads=1, cache=False, limits=BUDGETS)
            model = clew.language_model(made, folder=folder)
        prompt = draw.choice(("hé", [5, 6], [{"role": "user", "content": "hé"}]))
        clew.generate(model, prompt, max_tokens=4, stop=["\n"])
        return "ran"

    def _saved(self, path: Path, draw: random.Random) -> str:
        if draw.random() < 0.5:
            _resealed(path, draw)
            clew.load_compiled(path, 1)  # its code is not to be trusted
            return "loaded"
        loaded = clew.load_compiled(path, 1)
        loaded.run(draw_inputs(loaded.inputs, {}, 0, {}))
        return "ran"


def _steps(path: Path) -> str:
    """Replays a schedule on the kernel it is of, or another."""
    text = path.read_text(encoding="utf-8", errors="replace")
    Schedule.replay(_nest(), text).finished()
    return "loaded"


@cache
def _nest() -> Any:
    """Returns the nest that the corpus's schedule is of."""
    return clew.compile(network(), threads=1, cache=False).build.uses[0].source.nest


@cache
def _decoder() -> Any:
    """Returns the model of the corpus's folder, to read damaged texts with."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in folder_corpus.good().items():
            (Path(folder) / name).write_bytes(data)
        return clew.compile(folder, opt_level=1, threads=1, cache=False)


def _resealed(path: Path, draw: random.Random) -> None:
    """Damages a saved model's text behind a checksum that fits."""
    container = read_container(path)
    for _ in range(draw.choice((1, 1, 3))):
        owner, key = draw.choice(list(fields(container.text)))
        owner[key] = draw.choice([None, True, "x", [], {}, 1.5, *INTS, owner[key]])
    with contextlib.suppress(ValueError):
        write_container(path, container.text, list(container.blobs))


def _keeps_secret(module: Any) -> None:
    for node in getattr(module.main.body, "fields", ()):
        for arg in getattr(node, "args", ()):
            data = getattr(arg, "data", None)
            assert data is None or SECRET[:16] not in np.asarray(data).tobytes(), (
                "a secret was read"
            )


def _inputs(compiled: Any, seed: Seed, draw: random.Random) -> dict[str, Any]:
    """Returns the case's inputs if they fit; otherwise, and sometimes anyway, hostile ones."""
    found: dict[str, Any] = {}
    for given in compiled.inputs:
        known = seed.inputs.get(given.name)
        if known is not None and draw.random() < 0.8:
            found[given.name] = known
            continue
        if given.dtype is None:
            found[given.name] = known
            continue
        shape = [d if isinstance(d, int) else draw.choice((0, 1, 2, 3, 5)) for d in given.shape]
        size = int(np.prod(shape, dtype=object)) if shape else 1
        if size > 1 << 20:
            found[given.name] = np.zeros(1, given.dtype)  # refused for its shape
            continue
        rng = np.random.default_rng(draw.randrange(1 << 30))
        small = rng.integers(-3, 4, shape)
        if given.dtype.kind in "iu":
            wild = np.array(INTS, object)[rng.integers(0, len(INTS), shape)]
            values = np.asarray(wild if draw.random() < 0.4 else small, object)
            bits = 8 * given.dtype.itemsize
            wrapped = np.array([int(v) % (1 << bits) for v in values.reshape(-1)], f"u{bits // 8}")
            found[given.name] = wrapped.view(given.dtype).reshape(shape)
        elif given.dtype.kind in "OUST":
            found[given.name] = np.full(shape, draw.choice(("", "a", "é", "1")), given.dtype)
        else:
            found[given.name] = small.astype(given.dtype)
    return found


def _uncoded(error: BaseException) -> Ending:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}clew{os.sep}" in f.filename] or frames
    last = ours[-1]
    where = f"{Path(last.filename).parent.name}/{Path(last.filename).name}:{last.name}"
    key = f"{type(error).__name__} in {where}"
    return Ending("uncoded", type(error).__name__, key, "".join(traceback.format_exception(error)))
