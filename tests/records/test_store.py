"""Records are kept, found, exchanged and refused."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clew.records import Store, Trial
from clew.records.exchange import export_records, import_records
from clew.records.processes import is_running, this_process
from clew.records.store import SessionRecord, Use
from clew.support.errors import InputError


def trial(subject: str = "aa", **changes: Any) -> Trial:
    made = Trial(
        kind="kernel", subject=subject, machine="m", threads=2, version="v",
        choices="conv: rows=6", schedule="split(loop='a', factor=2)", model="net", state="won",
        ns=900.0, q1_ns=890.0, q3_ns=950.0, against_ns=1000.0, pairs=12, ratio=0.9,
        total_ratio=0.9,
    )  # fmt: skip
    return replace(made, **changes)


def test_the_best_record_of_a_kernel_is_the_fastest(tmp_path: Path) -> None:
    with Store(tmp_path / "t.db") as store:
        quick, sure = trial(total_ratio=0.7), trial(total_ratio=0.8, confirmed=True)
        slow = trial(total_ratio=1.1)
        others = [trial("bb", state=s) for s in ("lost", "wrong", "failed", "crashed", "undecided")]
        elsewhere = [trial(machine="n"), trial(threads=1)]
        assert store.add([quick, sure, slow, *others, *elsewhere]) == 10
        assert store.best("m", 2) == {("kernel", "aa"): [quick, sure]}
        assert store.best("m", 1) == {("kernel", "aa"): [elsewhere[1]]}
        assert store.best("x", 2) == {}
        assert store.trials(subjects=["bb"]) == sorted(others, key=lambda t: (t.made, t.uid))


def test_records_outlive_the_process_that_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Store(path) as store:
        store.begin(trial(state="verifying", uid="1"))
        store.begin(trial("bb", state="measuring", uid="2"))
        store.begin(trial("cc", state="verifying", uid="3"))
        store.update(trial("cc", uid="3", pairs=20))
        assert store.settle_crashed() == []  # this process is running them
    connection = sqlite3.connect(path)
    gone = this_process().rpartition("|")[0] + "|1"  # a later process got the number
    connection.execute("UPDATE trials SET process=? WHERE process<>''", (gone,))
    connection.commit()
    connection.close()
    with Store(path) as store:
        assert [t.uid for t in store.settle_crashed()] == ["1"]
        assert {t.uid: t.state for t in store.trials()} == {"1": "crashed", "3": "won"}
        assert store.trials(subjects=["cc"])[0].pairs == 20


def test_processes_are_told_apart() -> None:
    assert is_running(this_process())
    child = subprocess.run(
        [sys.executable, "-c", "from clew.records.processes import *; print(this_process())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not is_running(child.stdout.strip())
    assert not is_running("")
    assert is_running("another-host|boot|1|2")


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    program = (
        "import sys; from clew.records import Store, Trial\n"
        "with Store(sys.argv[1]) as store:\n"
        "    for n in range(40):\n"
        "        store.begin(Trial(f'{sys.argv[2]}{n}', 'c', kind='kernel', machine='m', "
        "            threads=1, version='v'))\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("a", "b")
    ]
    assert [run.wait(120) for run in runs] == [0, 0]
    with Store(path, write=False) as store:
        assert len({t.subject for t in store.trials()}) == 80


def test_records_travel_as_lines(tmp_path: Path) -> None:
    use = Use("kernel", "aa", "net", "conv_relu", ("a/1", "b"), "conv: rows=4")
    with Store(tmp_path / "a.db") as store, Store(tmp_path / "b.db") as other:
        store.add([trial(), trial("bb", state="lost", ns=None)], [use])
        store.begin(trial("cc", state="verifying"))
        assert export_records(store, tmp_path / "x.jsonl") == 2
        assert import_records(other, tmp_path / "x.jsonl") == 2
        assert import_records(other, tmp_path / "x.jsonl") == 0
        assert other.trials() == [t for t in store.trials() if t.subject != "cc"]
        assert other.uses("net") == [use]
        assert other.uses("none") == []


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "1", "{}", '{"use": {}}', '{"use": 3}', '{"use": {"layers": 1}}',
        json.dumps({**trial().to_json(), "threads": "2"}),
        json.dumps({**trial().to_json(), "threads": 0}),
        json.dumps({**trial().to_json(), "state": "measuring"}),
        json.dumps({**trial().to_json(), "state": "good"}),
        json.dumps({**trial().to_json(), "ns": -1.0}),
        json.dumps({**trial().to_json(), "ns": True}),
        json.dumps({**trial().to_json(), "more": 1}),
        json.dumps({**trial().to_json(), "ns": 1.0}).replace("1.0", "NaN"),
        "\udcff",
    ],
)  # fmt: skip
def test_lines_that_are_no_records_add_nothing(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    text = f"{json.dumps(trial().to_json())}\n{line}\n"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with Store(tmp_path / "t.db") as store:
        with pytest.raises(InputError, match="line 2") as caught:
            import_records(store, path)
        assert caught.value.code == "I384"
        assert store.trials() == []


def test_sessions_are_kept_in_order(tmp_path: Path) -> None:
    one = SessionRecord("1", "net", "m", 2, 10.0, 5.0, 3, 100.0, 90.0)
    two = replace(one, uid="2", began=5.0, after_ns=None)
    with Store(tmp_path / "t.db") as store:
        store.note_session(one)
        store.note_session(replace(two, trials=1))
        store.note_session(two)
        assert store.sessions("net", "m", 2) == [two, one]
        assert store.sessions("net", "m", 1) == []


def _text(path: Path) -> None:
    path.write_text("these are no records " * 100)


def _cut(path: Path) -> None:
    with Store(path) as store:
        store.add([trial(str(n)) for n in range(200)])
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE trials (uid TEXT)")
    connection.commit()
    connection.close()


def _bare(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id={0x636C6577}")
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()


def _damaged_row(path: Path) -> None:
    with Store(path) as store:
        store.add([trial()])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE trials SET state='good', threads=2")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("make", [_text, _cut, _foreign, _bare, _damaged_row])
@pytest.mark.parametrize("write", [False, True])
def test_other_files_are_refused(tmp_path: Path, make: Any, write: bool) -> None:
    path = tmp_path / "t.db"
    make(path)
    with pytest.raises(InputError, match=r"t\.db") as caught, Store(path, write=write) as store:
        store.trials()
    assert caught.value.code == "I381"
    assert caught.value.hint


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(InputError, match="format 7") as caught:
        Store(path)
    assert caught.value.code == "I382"


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "absent.db"):
        with pytest.raises(InputError) as caught:
            Store(path, write=False)
        assert caught.value.code == "I380"


def test_a_file_in_a_folder_without_write_permission_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    with Store(folder / "t.db") as store:
        store.add([trial()])
    folder.chmod(0o555)
    try:
        with Store(folder / "t.db", write=False) as store:
            assert len(store.trials()) == 1
    finally:
        folder.chmod(0o755)


def test_readers_leave_no_log_behind_and_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with Store(path) as store:
        store.add([trial()])
    before = path.read_bytes()
    with Store(path, write=False) as store:
        assert len(store.trials()) == 1
        with pytest.raises(InputError, match="I380"):
            store.add([trial("bb")])
    assert [p.name for p in tmp_path.iterdir()] == ["t.db"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("write", [False, True])
def test_other_tables_views_and_triggers_are_refused(tmp_path: Path, write: bool) -> None:
    """A view in place of a table could have rows without end."""
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS uid FROM n"
    )
    changes = {
        "view": ["DROP TABLE trials", f"CREATE VIEW trials AS {endless}"],
        "trigger": [
            "CREATE TRIGGER sqliteXt AFTER INSERT ON trials BEGIN "
            "DELETE FROM uses WHERE kind IN (SELECT randomblob(1000000000)); END"
        ],
        "column": ["ALTER TABLE uses ADD COLUMN more TEXT GENERATED ALWAYS AS (layers || layers)"],
        "more": ["CREATE TABLE more (a)"],
    }
    for name, statements in changes.items():
        path = tmp_path / f"{name}{write}.db"
        with Store(path) as store:
            store.add([trial()])
        with Store(path, write=write) as store:
            assert store.best("m", 2)
        connection = sqlite3.connect(path)
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        with pytest.raises(InputError) as caught:
            Store(path, write=write)
        assert caught.value.code == "I381", name


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    path.touch()
    with Store(path, write=False) as store:
        assert store.trials() == []
        assert store.uses() == []
    assert path.read_bytes() == b""
    with Store(path) as store:
        assert store.trials() == []
    with Store(path, write=False) as store:
        assert store.trials() == []


def test_an_interrupt_leaves_no_transaction_open(tmp_path: Path) -> None:
    with Store(tmp_path / "records.db") as store:
        store._connection.execute("BEGIN IMMEDIATE")  # as if Ctrl-C had come right afterwards
        assert store.settle_crashed() == []
        assert not store._connection.in_transaction
