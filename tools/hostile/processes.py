"""What may happen to a process: threads, forks, kills, full and foreign disks, little memory, odd
inputs. Results have to be right all the same, or one coded error says why there is none.

`HOSTILE_ROUNDS` says how often those are repeated that meet chance (default 1).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import random
import resource
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

import clew
from clew.runtime.cache import Cache, default_cache
from clew.runtime.container import read_container, write_container
from clew.runtime.segment import NativeSegment
from clew.support.errors import ClewError
from hostile.catalogue import Case, load, model, node, value
from hostile.corpus import network

ROUNDS: Final = int(os.environ.get("HOSTILE_ROUNDS", "1"))
ALL: Final[list[Case]] = []
IMAGE: Final = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)


def case(*expected: str, slow: bool = False) -> Callable[[Any], Any]:
    """Puts a function of an empty folder, which is the cache's too, into the catalogue."""

    def register(attack: Any) -> Any:
        def attacked(folder: Path) -> Any:
            os.environ["CLEW_CACHE_DIR"] = str(folder / "cache")
            return attack(folder)

        ALL.append(Case(attack.__name__, attacked, expected or ("ok",), slow))
        return attack

    return register


def symbolic() -> Any:
    """Returns a model of any number of rows."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("Add", ["b", "a"], ["y"]),
    ]
    w = load_weight()
    return model(nodes, [w], inputs=[value("x", ["n", 16])])


def load_weight() -> Any:
    """Returns a product's weights."""
    from onnx import numpy_helper  # noqa: PLC0415

    data = np.sin(np.arange(16 * 24, dtype=np.float32)).reshape(16, 24)
    return numpy_helper.from_array(data, "w")


def late() -> Any:
    """Returns a model whose shapes only a run tells."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["f"], to=1),
        node("Exp", ["f"], ["e"]),
        node("Mul", ["e", "f"], ["y"]),
    ]
    return model(nodes, inputs=[value("x", [2, 6])])


def compiled(what: Any, threads: int = 2, **options: Any) -> Any:
    """Returns a compiled model."""
    return clew.compile(load(what), threads=threads, **options)


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Returns what calls from as many threads gave, all begun at once."""
    gate = threading.Barrier(count)

    def begin(number: int) -> Any:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def in_child(work: Callable[[], Any], patience_s: float = 30.0) -> None:
    """Runs work in a forked process, which has to succeed in time."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
    assert _ended(child, patience_s) == 0, "the child failed"


def _ended(child: int, patience_s: float) -> int:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")


# --- threads --------------------------------------------------------------------------------------


@case()
def calls_from_threads(folder: Path) -> None:
    built = compiled(network())
    inputs = [IMAGE * (n + 1) for n in range(8)]
    wanted = [built(x) for x in inputs]

    def work(number: int) -> bool:
        return all(
            np.array_equal(built(inputs[k % 8]), wanted[k % 8])
            for k in range(number, number + 40 * ROUNDS)
        )

    assert all(together(8, work))


@case()
def builds_while_others_run(folder: Path) -> None:
    built = compiled(symbolic())
    reference = compiled(symbolic(), threads=1, cache=False)
    rows = [np.cos(np.arange(n * 16, dtype=np.float32)).reshape(n, 16) for n in range(1, 9)]
    wanted = [reference(x) for x in rows]

    def work(number: int) -> bool:
        draw = random.Random(number)
        order = [draw.randrange(8) for _ in range(20 * ROUNDS)]
        return all(np.array_equal(built(rows[k]), wanted[k]) for k in order)

    assert all(together(6, work))


@case()
def more_sizes_than_are_kept_from_threads(folder: Path) -> None:
    built = compiled(symbolic(), threads=1)
    rows = [np.ones((n, 16), np.float32) for n in range(1, 40)]

    def work(number: int) -> bool:
        return all(built(x).shape == (len(x), 24) for x in rows[number::2] + rows[number::3])

    assert all(together(3, work))


@case()
def saved_models_from_threads(folder: Path) -> None:
    first = compiled(symbolic())
    rows = [np.ones((n, 16), np.float32) for n in (1, 5, 7)]
    wanted = [first(x) for x in rows]
    first.save(folder / "m.clew")
    built = clew.load_compiled(folder / "m.clew", 2)

    def work(number: int) -> bool:
        order = [(number + k) % 3 for k in range(30 * ROUNDS)]
        return all(np.array_equal(built(rows[k]), wanted[k]) for k in order)

    assert all(together(6, work))


@case()
def late_shapes_from_threads(folder: Path) -> None:
    built = compiled(late())
    draw = np.random.default_rng(1)
    inputs = [(draw.random((2, 6)) < p).astype(np.float32) for p in (0.0, 0.2, 0.5, 0.8, 1.0)]
    wanted = [compiled(late(), threads=1)(x) for x in inputs]

    def work(number: int) -> bool:
        order = [(number + k) % 5 for k in range(15 * ROUNDS)]
        return all(np.array_equal(built(inputs[k]), wanted[k]) for k in order)

    assert all(together(5, work))


@case()
def threads_that_compile(folder: Path) -> None:
    def work(number: int) -> bool:
        nodes = [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["y"])]
        built = compiled(model(nodes, inputs=[value("x", [number % 3 + 1, 5])]))
        x = np.ones((number % 3 + 1, 5), np.float32)
        return bool(np.allclose(built(x), np.exp(-x)))

    assert all(together(6, work))


# --- forks ----------------------------------------------------------------------------------------


@case()
def parent_and_child_run(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)

    def work() -> None:
        assert np.array_equal(built(IMAGE), wanted)
        other = compiled(symbolic(), cache=False)
        assert other(np.ones((3, 16), np.float32)).shape == (3, 24)

    for _ in range(3 * ROUNDS):
        in_child(work)
        assert np.array_equal(built(IMAGE), wanted)


@case()
def forks_while_threads_run(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            assert np.array_equal(built(IMAGE), wanted)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8 * ROUNDS):
            in_child(lambda: np.testing.assert_array_equal(built(IMAGE), wanted))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@case()
def forks_while_threads_build(folder: Path) -> None:
    """The child asks for a size that another thread of the parent may be building."""
    built = compiled(symbolic())
    stop = threading.Event()
    sizes = iter(range(10, 100_000))

    def busy() -> None:
        while not stop.is_set():
            built(np.ones((next(sizes), 16), np.float32))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for n in range(1, 4 * ROUNDS + 1):
            time.sleep(0.02)
            in_child(partial(built, np.ones((n % 9 + 1, 16), np.float32)))
    finally:
        stop.set()
        thread.join()


@case()
def a_child_of_a_child(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)

    def inner() -> None:
        assert np.array_equal(built(IMAGE), wanted)

    in_child(lambda: in_child(inner))
    inner()


# --- disks ----------------------------------------------------------------------------------------


def right(**options: Any) -> None:
    """Compiles and runs, whatever the disk does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = compiled(network(), threads=1, **options)
        assert np.isclose(built(IMAGE).sum(), 1)


@case()
def a_disk_that_takes_no_byte(folder: Path) -> None:
    """Files end at 0 bytes: what writes past it gets EFBIG."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    right()
    assert default_cache().stats().entries == 0


@case()
def a_disk_that_is_full_after_some_bytes(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in (1, 100, 1000, 4096, 9000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        right()
        left = [p for p in folder.rglob("*") if p.name.startswith(("writing-", ".clew-"))]
        assert not left, left
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    right()


@case()
def no_space_left(folder: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch("os.replace", side_effect=full):
        right()
    with mock.patch("tempfile.mkstemp", side_effect=full):
        right()


@case("C050")
def saving_to_a_full_disk(folder: Path) -> None:
    built = compiled(network(), threads=1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
    try:
        built.save(folder / "m.clew")
    finally:
        assert not list(folder.glob("*.clew"))
        assert not list(folder.glob(".clew-*"))


@case("C050")
def saving_over_a_folder(folder: Path) -> None:
    (folder / "m.clew").mkdir()
    compiled(network(), threads=1).save(folder / "m.clew")


@case()
def caches_that_cannot_be(folder: Path) -> None:
    (folder / "file").write_bytes(b"")
    for place in ("/proc/clew", "/sys/clew", str(folder / "file" / "cache"), "/dev/null/x"):
        os.environ["CLEW_CACHE_DIR"] = place
        right()


@case()
def a_cache_that_is_a_link_in_a_circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    os.environ["CLEW_CACHE_DIR"] = str(folder / "a")
    right()


@case()
def a_cache_of_someone_else(folder: Path) -> None:
    """Native code of a folder that others can write to is not run."""
    place = folder / "cache"
    right()
    assert default_cache().stats().entries > 0
    place.chmod(0o777)
    assert default_cache().root is None
    place.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(place, 12345, 12345)
        assert default_cache().root is None
    right()


@case()
def no_home(folder: Path) -> None:
    for name in ("CLEW_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    with mock.patch.object(pwd, "getpwuid", side_effect=KeyError("no such user")):
        right()


@case()
def a_home_that_does_not_exist(folder: Path) -> None:
    os.environ.pop("CLEW_CACHE_DIR")
    os.environ.pop("XDG_CACHE_HOME", None)
    os.environ["HOME"] = "/proc/no/home"
    right()


@case()
def a_cache_removed_meanwhile(folder: Path) -> None:
    right()
    shutil.rmtree(folder / "cache")
    right()
    default_cache().clear()
    right()


# --- kills ----------------------------------------------------------------------------------------


@case()
def kills_while_compiling(folder: Path) -> None:
    draw = random.Random(7)
    kills = 0
    for _ in range(12 * ROUNDS):
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            with contextlib.suppress(BaseException):
                right()
                compiled(symbolic(), threads=1)(np.ones((3, 16), np.float32))
            os._exit(0)
        time.sleep(draw.random() * 0.6)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
        right()
    cache = default_cache()
    assert cache.stats().damaged == 0
    assert _damaged(cache) == 0
    assert kills > 4


def _damaged(cache: Cache) -> int:
    """Returns how many of a cache's entries are not whole, by reading each as its reader does."""
    assert cache.root is not None
    count = 0
    for path in cache.root.glob("??/*"):
        data = path.read_bytes()
        if path.name.startswith(("writing-", ".clew-")):
            continue
        if data.startswith(b"clew-cache-1\n"):
            key = path.parent.name + path.name
            count += Cache(cache.root).get(key) is None
        else:
            try:
                read_container(path)
            except ClewError:
                count += 1
    return count


@case()
def processes_with_one_cache(folder: Path) -> None:
    for _ in range(2 * ROUNDS):
        default_cache().clear()
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    right()
                    os._exit(0)
                except BaseException as error:
                    os.write(2, f"{error!r}\n".encode())
                    os._exit(1)
            children.append(child)
        assert [_ended(child, 60) for child in children] == [0, 0, 0]
        assert compiled(network(), threads=1).from_cache


@case()
def interrupts_while_compiling(folder: Path) -> None:
    """Ctrl-C at any time leaves everything as usable as before."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    draw = random.Random(5)
    met = 0
    for _ in range(12 * ROUNDS):
        signal.setitimer(signal.ITIMER_REAL, 0.002 + draw.random() * 0.2)
        try:
            compiled(network(), threads=1, cache=False)(IMAGE)
        except KeyboardInterrupt:
            met += 1
        except ClewError as error:  # a pass that was interrupted says which
            assert isinstance(error.__cause__, KeyboardInterrupt), error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        right(cache=False)
    assert met


# --- files of the cache and saved models ----------------------------------------------------------


@case()
def damaged_cache_files(folder: Path) -> None:
    right()
    draw = random.Random(3)
    paths = sorted(p for p in (folder / "cache").glob("??/*"))
    assert len(paths) > 3
    for path in paths:
        whole = path.read_bytes()
        damages = [whole[:n] for n in (0, 1, 20, len(whole) // 2, len(whole) - 1)]
        damages += [whole + b"x", bytes(len(whole)), whole.replace(b"cache-1", b"cache-9")]
        for _ in range(2 * ROUNDS):
            flipped = bytearray(whole)
            flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            damages.append(bytes(flipped))
        for damaged in damages if ROUNDS > 1 else draw.sample(damages, 2):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(damaged)
            right()
    assert compiled(network(), threads=1).from_cache


@case()
def cache_files_that_are_no_files(folder: Path) -> None:
    right()
    for path in sorted((folder / "cache").glob("??/*"))[:4]:
        path.unlink()
        path.mkdir()
        right()
        path.rmdir()
        os.mkfifo(path)
        right()
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/zero")
        right()
        path.unlink(missing_ok=True)


def _artifact(folder: Path) -> tuple[Path, Any]:
    built = compiled(network(), threads=1)
    built.save(folder / "m.clew")
    return folder / "m.clew", built(IMAGE)


def _refused_or_same(path: Path, wanted: Any) -> bool:
    """Whether a saved model was refused; it gives the right result otherwise."""
    try:
        result = clew.load_compiled(path, 1)(IMAGE)
    except ClewError as error:
        assert error.code.startswith("C"), error
        return True
    assert np.array_equal(result, wanted)
    return False


@case()
def every_byte_of_a_saved_model(folder: Path) -> None:
    path, wanted = _artifact(folder)
    whole = path.read_bytes()
    draw = random.Random(11)
    refused = 0
    places = range(0, len(whole), 1 if ROUNDS > 1 else 97)
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        refused += _refused_or_same(path, wanted)
    assert refused == len(places)


@case()
def every_length_of_a_saved_model(folder: Path) -> None:
    path, wanted = _artifact(folder)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7 if ROUNDS > 1 else 211):
        path.write_bytes(whole[:length])
        assert _refused_or_same(path, wanted)
    path.write_bytes(whole + b"\0")
    assert _refused_or_same(path, wanted)


@case()
def saved_for_another_machine(folder: Path) -> None:
    path, wanted = _artifact(folder)
    container = read_container(path)
    text, blobs = container.text, [b.copy() for b in container.blobs]

    def other(**machine: Any) -> str:
        changed = {**text, "machine": {**text["machine"], **machine}}
        write_container(folder / "o.clew", changed, blobs)
        try:
            clew.load_compiled(folder / "o.clew", 1)
        except ClewError as error:
            return error.code
        return ""

    assert other() == ""
    assert other(triple="aarch64-unknown-linux-gnu") == "C056"
    assert other(triple="x86_64-pc-windows-msvc") == "C056"
    assert other(features=[*text["machine"]["features"], "avx1024"]) == "C057"
    assert other(cpu="z80", same_cpu=True) == "C057"
    for name in text["machine"]:
        assert other(**{name: None}) in ("", "C055"), name
    write_container(folder / "o.clew", text, blobs, version=99)
    assert _refused_or_same(folder / "o.clew", wanted)


# --- inputs ---------------------------------------------------------------------------------------


class Sub(np.ndarray):
    """An array that is more than one."""


def odd_arrays(x: Any) -> Iterator[Any]:
    """Yields arrays equal to one, laid out otherwise."""
    yield np.asfortranarray(x)
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    yield np.flip(np.flip(x).copy())
    room = np.zeros(x.nbytes + 1, np.uint8)
    misaligned = room[1:].view(x.dtype).reshape(x.shape)
    misaligned[...] = x
    yield misaligned
    frozen = x.copy()
    frozen.flags.writeable = False
    yield frozen
    yield x.view(Sub)
    yield np.ma.MaskedArray(x)
    yield x.tolist()
    yield memoryview(np.ascontiguousarray(x).data)
    yield np.broadcast_to(x[:1], x.shape) if (x == x[:1]).all() else x
    yield x.astype(x.dtype.newbyteorder())
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, x.dtype, "w+", shape=x.shape)
        mapped[...] = x
        yield mapped


@case()
def odd_inputs(folder: Path) -> None:
    built = compiled(network(), guard=True)
    wanted = built(IMAGE)
    served = 0
    for x in odd_arrays(IMAGE):
        try:
            result = built(x)
        except ClewError as error:
            assert error.code in ("I042", "I043"), error
            continue
        assert type(result) is np.ndarray
        assert np.array_equal(result, wanted), type(x)
        served += 1
    assert served > 8


def _by_name(built: Any) -> Callable[[Any], Any]:
    return lambda x: built.run({"x": x})


class Liar:
    """Says that it is an array."""

    shape = (1, 3, 8, 8)
    dtype = np.dtype(np.float32)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return np.zeros(3, np.int8)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


@case()
def inputs_that_are_none(folder: Path) -> None:
    built = compiled(network(), threads=1)
    vast = np.broadcast_to(np.float32(0), (1, 3, 1 << 20, 1 << 20))
    wrong = [
        None, "text", b"bytes", 1, 1.5, [], {}, object(), np.zeros(0), np.array("x"), vast,
        np.zeros((1, 3, 8, 8), object), np.zeros((1, 3, 8, 8), np.complex64), IMAGE.astype("M8[s]"),
        np.zeros((1, 3, 8, 8), [("a", "f4")]), IMAGE[0], IMAGE.astype(np.float64), [[1], [2, 3]],
        Liar(),
    ]  # fmt: skip
    for x in wrong:
        for call in (built, _by_name(built)):
            try:
                call(x)
            except ClewError as error:
                assert error.code in ("I042", "I043", "I041", "I040"), error
                continue
            raise AssertionError(f"{type(x)} was taken")


@case()
def vast_inputs_of_no_memory(folder: Path) -> None:
    """2^40 rows that are one row: the result would be vast."""
    built = compiled(symbolic(), threads=1)
    row = np.ones((1, 16), np.float32)
    for count in (1 << 33, 1 << 40, (1 << 57) - 1):
        try:
            built(np.broadcast_to(row, (count, 16)))
        except ClewError as error:
            assert error.code in ("C140", "I265", "I267"), error
            continue
        raise AssertionError(count)


@case()
def outputs_that_overlap(folder: Path) -> None:
    built = compiled(model([node("Softmax", ["x"], ["y"])], inputs=[value("x", [4, 16])]))
    segments: Sequence[NativeSegment] = built.build.segments
    x = np.sin(np.arange(64, dtype=np.float32)).reshape(4, 16)
    wanted = built(x)
    room = np.zeros(200, np.float32)
    for start in (0, 1, 7, 33, 64, 100):
        source = room[start : start + 64].reshape(4, 16)
        source[...] = x
        target = room[20 : 20 + 64].reshape(4, 16)
        (result,) = segments[0]([source], [target])
        assert np.array_equal(result, wanted), start


# --- little of everything -------------------------------------------------------------------------


@case("ok", "I267", "C001", "C002")
def little_memory(folder: Path) -> None:
    built = compiled(symbolic(), threads=1)
    built(np.ones((3, 16), np.float32))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    built(np.ones((1_000_000, 16), np.float32))


@case("ok", "M011", "C050", "C002", "C003")
def few_files(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
    right(cache=False)


@case()
def no_processes(folder: Path) -> None:
    with mock.patch("subprocess.Popen", side_effect=BlockingIOError(errno.EAGAIN, "no process")):
        right(cache=False)


@case()
def a_folder_that_is_gone(folder: Path) -> None:
    """The working folder is removed under the process."""
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    right()


@case("ok", "I265", "C140")
def a_size_that_a_value_tells(folder: Path) -> None:
    made = model([node("ConstantOfShape", ["n"], ["y"])], inputs=[value("n", [1], 7)])
    clew.compile(made, threads=1)(np.array([1 << 50]))
