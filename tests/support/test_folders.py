"""Folders that nobody but this user may change. Root, too, goes by owner and mode."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from clew.support import folders
from clew.support.folders import is_ours, make_private, open_folder, open_ours, why_not_ours

OTHER = 54321


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        folder.chmod(0o755)
    return tmp_path / "a" / "b"


def test_a_folder_of_this_user(place: Path) -> None:
    assert why_not_ours(place) == ""
    assert why_not_ours(place / "none" / "none") == ""
    assert why_not_ours(place / ".." / "b") == ""
    place.chmod(0o777)
    assert why_not_ours(place) == ""  # that is for is_ours to say
    assert not is_ours(place.stat())


@pytest.mark.parametrize(("mode", "fine"), [(0o775, False), (0o757, False), (0o1777, True)])
def test_who_may_write_to_a_folder_above(place: Path, mode: int, fine: bool) -> None:
    os.chown(place.parent, -1, OTHER) if os.geteuid() == 0 else None
    place.parent.chmod(mode)
    for folder in (place, place / "none"):
        expected = "" if fine else f"others may write to {place.parent}"
        if os.geteuid() == 0 or mode != 0o775:
            assert why_not_ours(folder) == expected


def test_a_private_group_may_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.chmod(0o775)
    gid = place.parent.stat().st_gid
    me = SimpleNamespace(pw_name="me", pw_uid=os.geteuid(), pw_gid=gid)
    other = SimpleNamespace(pw_name="other", pw_uid=OTHER, pw_gid=OTHER)
    group = SimpleNamespace(gr_name="me", gr_mem=[])
    users = [me, other]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    assert why_not_ours(place) == ""
    group.gr_mem = ["me", "other"]
    assert why_not_ours(place)
    group.gr_mem, other.pw_gid = [], gid
    assert why_not_ours(place)
    other.pw_gid, group.gr_name = OTHER, "staff"
    assert why_not_ours(place)
    group.gr_name = "me"
    place.parent.chmod(0o777)
    assert why_not_ours(place)


def test_somebody_elses(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert why_not_ours(place).endswith("belongs to somebody else")
    assert not is_ours(place.stat())
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        open_folder(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_roots_folders_are_trusted_but_for_the_last(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(place, OTHER, -1)
    assert why_not_ours(place) == f"{place} belongs to somebody else"
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert why_not_ours(place) == ""
    os.chown(place, 0, -1)
    assert why_not_ours(place) == f"{place} belongs to somebody else"


def test_links_are_looked_at_and_followed(place: Path) -> None:
    place.parent.chmod(0o777)
    link = place.parent.parent / "link"
    link.symlink_to("a/b")
    assert why_not_ours(link) == f"others may write to {place.parent}"
    assert why_not_ours(place.parent / "b" / "..") == f"others may write to {place.parent}"
    place.parent.chmod(0o755)
    assert why_not_ours(link / "none") == ""
    (place / "circle").symlink_to("circle")
    assert "cannot be examined" in why_not_ours(place / "circle")
    (place / "absolute").symlink_to(place)
    assert why_not_ours(place / "absolute" / "absolute") == ""
    with pytest.raises(OSError, match=r"."):
        open_folder(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_somebody_elses_in_a_sticky_folder(place: Path) -> None:
    place.parent.chmod(0o1777)
    link = place.parent / "link"
    link.symlink_to("b")
    os.chown(link, OTHER, -1, follow_symlinks=False)
    assert why_not_ours(link) == f"{link} belongs to somebody else"


def test_missing_folders_are_made_private(place: Path) -> None:
    before = os.umask(0o002)
    try:
        make_private(place / "c" / "d")
        make_private(place / "c" / "d")
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (place / "c", place / "c" / "d")] == [0o700] * 2
    (place / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"."):
        make_private(place / "file" / "x")


def test_files_in_an_open_folder(place: Path) -> None:
    (place / "f").write_bytes(b"1")
    (place / "f").chmod(0o644)
    (place / "link").symlink_to("f")
    os.mkfifo(place / "pipe")
    folder = open_folder(place)
    try:
        with open_ours("f", folder) as file:
            assert file.read() == b"1"
        for name in ("link", "pipe", "none", ".."):
            with pytest.raises(OSError, match=r"."):
                open_ours(name, folder)
        (place / "f").chmod(0o664)
        with pytest.raises(PermissionError, match="others may write to it"):
            open_ours("f", folder)
        with folders.create_in(folder, "made") as made:
            made.write(b"1")
        assert (place / "made").stat().st_mode & 0o777 == 0o600
        with pytest.raises(FileExistsError):
            folders.create_in(folder, "link")
    finally:
        os.close(folder)
