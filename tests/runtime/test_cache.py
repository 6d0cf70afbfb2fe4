import multiprocessing
import os
import shutil
import time
import warnings
from pathlib import Path

import pytest

from clew.runtime.cache import (
    DISK_SHARE,
    INDEX,
    MOST_BYTES,
    PART,
    Cache,
    Index,
    default_cache,
)
from clew.support.errors import ClewError, ClewWarning, noting_warnings

KEY, OTHER = "ab" * 32, "cd" * 32


def file_of(root: Path, key: str) -> Path:
    return root / key[:2] / key[2:]


def test_put_then_get(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "down")
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    cache.put(OTHER, b"")
    assert cache.get(KEY) == b"code"
    assert Cache(tmp_path / "deep" / "down").get(OTHER) == b""
    cache.put(KEY, b"newer")
    assert cache.get(KEY) == b"newer"
    stats = cache.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.damaged) == (2, 2, 1, 0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"something else entirely, from another program",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:30] + bytes([content[30] ^ 1]) + content[31:],
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = Cache(tmp_path)
    cache.put(KEY, b"code")
    path = file_of(tmp_path, KEY)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    assert cache.stats().damaged == 1
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"


def test_an_entry_under_a_wrong_name_is_a_miss(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"code")
    file_of(tmp_path, OTHER).parent.mkdir()
    file_of(tmp_path, KEY).rename(file_of(tmp_path, OTHER))
    assert cache.get(OTHER) is None


def test_a_folder_that_cannot_be_made_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    with noting_warnings() as noted, pytest.warns(ClewWarning, match="C170.*without its disk") as w:
        cache.put(KEY, b"code")
    assert w[0].filename == __file__
    assert not noted  # a start of the model would repeat it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(KEY, b"code")
        assert cache.get(KEY) is None
    assert cache.stats().entries == 0


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path, **folders: int) -> None:
        raise OSError(28, "No space left on device")

    cache = Cache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        cache.put(KEY, b"code")
    assert cache.get(KEY) is None
    assert not list(tmp_path.glob("*/*"))


def test_clear_and_prune(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    keys = [f"{index:02x}" * 16 for index in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, bytes(1000))
        os.utime(file_of(tmp_path, key), (age, age))
    assert cache.get(keys[0]) is not None  # now the one used last
    (tmp_path / "00" / "README").write_text("not ours")
    size = cache.stats().size_bytes // 10
    assert cache.prune(3 * size) == 7
    assert [key for key in keys if cache.get(key)] == [keys[0], *keys[8:]]
    assert cache.clear() == 3
    assert cache.stats().entries == 0
    assert (tmp_path / "00" / "README").exists()


def test_pruning_removes_what_killed_writers_left(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("00" * 16, bytes(1000))
    for name in ("writing-abc", ".clew-0123"):
        for age, suffix in ((0, "new"), (7200, "old")):
            path = tmp_path / "00" / f"{name}{suffix}"
            path.write_bytes(bytes(10))
            os.utime(path, (time.time() - age, time.time() - age))
    assert cache.prune(1 << 20) == 2
    left = sorted(p.name for p in (tmp_path / "00").iterdir())
    assert left == [".clew-0123new", "00" * 15, "writing-abcnew"]


def test_a_cache_stays_below_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_SIZE", "5000")
    cache = Cache(tmp_path)
    for index in range(50):
        cache.put(f"{index:02x}" * 16, bytes(1000))
        assert 0 < cache.stats().size_bytes <= 5000


def test_the_limit_suits_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    share = disk.f_blocks * disk.f_frsize // DISK_SHARE
    assert Cache(tmp_path / "to be made").limit_bytes == min(MOST_BYTES, share)
    monkeypatch.setenv("CLEW_CACHE_SIZE", "500M")
    assert Cache(tmp_path).limit_bytes == 500 << 20
    monkeypatch.setenv("CLEW_CACHE_SIZE", "plenty")
    with pytest.raises(ClewError, match=r"I001.*CLEW_CACHE_SIZE is 'plenty', expected a size"):
        Cache(tmp_path).limit_bytes  # noqa: B018


def store(cache: Cache, key: str, parts: list[str], used_s: float) -> None:
    """Stores a build with parts of 1000 bytes, last used at some time."""
    for part in parts:
        assert cache.write(part, (bytes(1000),))
    cache.put_index(key, Index(tuple(parts), {}))
    path = cache.root / key[:2] / f"{key[2:]}{INDEX}"
    os.utime(path, (used_s, used_s))


def test_a_shared_part_is_kept_as_long_as_one_of_its_builds(tmp_path: Path) -> None:
    cache, now = Cache(tmp_path), time.time()
    a, b, c = (f"{letter * 20}{PART}" for letter in "abc")
    store(cache, "11" * 10, [a, b], now - 300)
    store(cache, "22" * 10, [b, c], now - 200)
    assert cache.prune(10_000) == 0
    kept = {entry.key for entry in cache.entries()}
    assert cache.prune(2_500) == 2  # the older index, and the part of it alone
    assert kept - {entry.key for entry in cache.entries()} == {"11" * 10 + INDEX, a}
    assert cache.prune(0) == 3
    assert cache.stats().entries == 0


def test_parts_of_a_build_that_is_being_written_are_kept(tmp_path: Path) -> None:
    cache, part = Cache(tmp_path), "ab" * 10 + PART
    cache.write(part, (bytes(1000),))
    assert cache.prune(10_000) == 0
    path = tmp_path / part[:2] / part[2:]
    os.utime(path, (time.time() - 7200,) * 2)
    assert cache.prune(10_000) == 1


def test_reading_an_entry_notes_its_use(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"data")
    path = tmp_path / KEY[:2] / KEY[2:]
    long_ago = time.time() - 7200
    os.utime(path, (long_ago, long_ago))
    assert cache.peek(KEY) == b"data"
    (entry,) = cache.entries()
    assert entry.used_s == pytest.approx(long_ago)
    cache.get(KEY)
    (entry,) = cache.entries()
    assert entry.used_s == pytest.approx(time.time(), abs=60)


def test_writers_look_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Cache, "prune", lambda self, most: looks.append(most) or 0)
    for writer in range(3):
        cache = Cache(tmp_path)
        for index in range(9):
            cache.put(f"{writer}{index}" * 16, b"data")
    assert len(looks) == 1
    long_ago = time.time() - 7200
    os.utime(tmp_path / "looked", (long_ago, long_ago))
    for index in range(9):
        cache.put(f"a{index}" * 16, b"data")
    assert len(looks) == 2
    monkeypatch.setenv("CLEW_CACHE_SIZE", "32000")
    for index in range(9):
        Cache(tmp_path).put(f"b{index}" * 16, bytes(300))
    assert len(looks) == 4


def test_a_cache_that_is_removed_while_it_is_looked_through(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for index in range(20):
        cache.put(f"{index:02x}" * 16, b"data")
    entries = cache.entries()
    next(entries)
    shutil.rmtree(tmp_path / "cache")
    assert len(list(entries)) < 19
    assert cache.stats().entries == 0
    cache.put(KEY, b"data")
    assert cache.get(KEY) == b"data"


def test_a_cache_without_a_folder_keeps_nothing() -> None:
    cache = Cache(None)
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None
    assert (cache.clear(), cache.prune(0), cache.stats().entries) == (0, 0, 0)


def write_and_read(root: Path, rounds: int) -> None:
    cache = Cache(root)
    for number in range(rounds):
        cache.put(KEY, bytes([number % 256]) * 50_000)
        data = cache.get(KEY)
        assert data is not None
        assert data == data[:1] * 50_000
    assert cache.stats().damaged == 0


def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_and_read, args=(tmp_path, 100)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0


def test_the_place_comes_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    assert default_cache().root == tmp_path
    monkeypatch.setenv("CLEW_CACHE", "0")
    assert default_cache().root is None


# --- who may write --------------------------------------------------------------------------------

OTHER_USER = 54321


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the default cache, with an entry made under the umask of a group."""
    root = tmp_path / "home" / "cache"
    monkeypatch.setenv("CLEW_CACHE_DIR", str(root))
    monkeypatch.setattr("clew.runtime.cache._warned_of", set())
    before = os.umask(0o002)
    default_cache().put(KEY, b"code")
    os.umask(before)
    return root


def modes(root: Path) -> list[int]:
    places = (root.parent, root, file_of(root, KEY).parent, file_of(root, KEY))
    return [place.stat().st_mode & 0o777 for place in places]


def test_a_cache_is_for_its_user_alone(root: Path) -> None:
    assert modes(root) == [0o700, 0o700, 0o700, 0o600]
    assert default_cache().get(KEY) == b"code"


@pytest.mark.parametrize("mode", [0o775, 0o770, 0o777, 0o702])
def test_a_cache_that_others_could_write_to_is_emptied_and_closed(root: Path, mode: int) -> None:
    """As older versions made it under the umask 002."""
    for place in (root, file_of(root, KEY).parent):
        place.chmod(mode)
    (root / "looked").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = default_cache()
    assert cache.root == root
    assert cache.get(KEY) is None
    assert not file_of(root, KEY).exists()
    cache.put(KEY, b"new")
    assert modes(root)[1:] == [0o700, 0o700, 0o600]
    assert default_cache().get(KEY) == b"new"


def test_a_cache_that_others_could_read_is_closed(root: Path) -> None:
    for place in (root, file_of(root, KEY).parent, file_of(root, KEY)):
        place.chmod(0o755)
    assert default_cache().get(KEY) == b"code"
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_folder_with_other_things_is_left_as_it_is(root: Path) -> None:
    (root / "thesis.txt").touch()
    root.chmod(0o775)
    with pytest.warns(UserWarning, match=r"holds other files\s+hint: CLEW_CACHE_DIR names") as seen:
        assert default_cache().root is None
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert default_cache().root is None  # said once
    assert root.stat().st_mode & 0o777 == 0o775
    assert file_of(root, KEY).exists()
    root.chmod(0o755)
    assert default_cache().get(KEY) == b"code"


@pytest.mark.parametrize(("mode", "used"), [(0o777, False), (0o1777, True), (0o755, True)])
def test_the_folders_above_count(root: Path, mode: int, used: bool) -> None:
    root.parent.chmod(mode)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert (default_cache().root is not None) == used
    assert [f"others may write to {root.parent}" in str(w.message) for w in seen] == [True] * (
        not used
    )


def test_a_cache_of_somebody_elses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    with pytest.warns(UserWarning, match="belongs to somebody else"):
        assert default_cache().root is None
    assert Cache(root).get(KEY) is None
    Cache(root).put(KEY, b"mine")
    monkeypatch.undo()
    assert Cache(root).get(KEY) == b"code"


def test_entries_that_others_could_write_to(root: Path) -> None:
    """One entry, and all of a folder."""
    cache = default_cache()
    cache.put(OTHER, b"code")
    file_of(root, KEY).chmod(0o664)
    assert cache.get(KEY) is None
    file_of(root, OTHER).parent.chmod(0o775)
    assert cache.get(OTHER) is None
    for key in (KEY, OTHER):
        cache.put(key, b"new")
        assert cache.get(key) == b"new"
    assert file_of(root, OTHER).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("place", ["entry", "folder", "root", "above"])
def test_what_somebody_else_put_there_is_not_read(root: Path, place: str) -> None:
    entry = file_of(root, KEY)
    chosen = {"entry": entry, "folder": entry.parent, "root": root, "above": root.parent}[place]
    os.chown(chosen, OTHER_USER, OTHER_USER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert default_cache().get(KEY) is None
        default_cache().put(KEY, b"new")
        assert default_cache().get(KEY) == (b"new" if place == "entry" else None)


def test_entries_and_folders_that_are_links(root: Path, tmp_path: Path) -> None:
    entry, cache = file_of(root, KEY), default_cache()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    assert cache.get(KEY) is None
    cache.put(KEY, b"new")
    assert cache.get(KEY) == b"new"
    assert not entry.is_symlink()
    entry.parent.rename(tmp_path / "folder")
    entry.parent.symlink_to(tmp_path / "folder")
    assert cache.get(KEY) is None
    assert cache.stats().entries == 0
    assert cache.clear() == 0
    assert (tmp_path / "folder" / entry.name).exists()


def test_damage_behind_a_poisoned_link_is_not_removed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    entry = file_of(root, KEY)
    entry.unlink()
    entry.symlink_to(tmp_path / "precious")
    assert default_cache().get(KEY) is None
    assert (tmp_path / "precious").exists()
