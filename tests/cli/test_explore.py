"""`clew explore`: what one types, what is printed, how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import clew
from clew.cli import app

TINY = """clew 1
def @main(
  %x: f32[4, 64]  // input x
) -> (f32[4, 64],) with outputs=["y"] {
  %0: f32[4, 64] = nn.relu(%x)  // relu:Relu#0
  %1: (f32[4, 64],) = (%0,)
  return %1
}
"""
QUICK = ("--threads", "1", "--no-browser")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.txt"
    path.write_text(TINY)
    return path


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["explore", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


def test_a_route_is_printed(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    code, out, err = command(capsys, tiny, *QUICK, "--get", "overview")
    assert code == 0, err
    overview = json.loads(out)
    assert overview["model"] == "tiny.txt"
    assert [layer["name"] for layer in overview["layers"]] == ["relu"]
    assert out.startswith("{\n  ")


def test_routes_of_two_builds(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    code, out, err = command(capsys, tiny, *QUICK, "--b", "opt-level=0", "--get", "b/overview")
    assert code == 0, err
    assert json.loads(out)["options"]["opt_level"] == 0
    code, out, err = command(capsys, tiny, *QUICK, "--b", "fuse=none", "--get", "diff")
    assert code == 0, err
    assert json.loads(out)["layers"]


def test_unknown_routes(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    code, out, err = command(capsys, tiny, *QUICK, "--get", "nonsense")
    assert (code, out) == (1, "")
    assert "error[I201]" in err
    assert "overview" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("none.onnx",), 1, "error[I227]"),
        (("--get", "overview"), 1, "error[I229]"),
        (("--b", "opt-level=0"), 2, "--b needs a model"),
        (("{tiny}", "--b", "nonsense=1"), 2, "is not one of"),
        (("{tiny}", "--b", "extend=missing.py", "--get", "diff"), 1, "error[I176]"),
        (("{tiny}", "--port", "99999"), 2, "--port"),
        (("--host", "256.1.1.1"), 1, "error[I225]"),
    ],
)
def test_what_does_not_fit(
    capsys: pytest.CaptureFixture[str], tiny: Path, arguments: Any, code: int, says: str
) -> None:
    typed = [a.replace("{tiny}", str(tiny)) for a in arguments]
    left, out, err = command(capsys, *typed)
    assert (left, out) == (code, "")
    assert says in err


def test_a_saved_model_has_no_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "m.clew").write_bytes(b"")
    code, _, err = command(capsys, tmp_path / "m.clew")
    assert code == 2
    assert "has no trace" in err


@contextlib.contextmanager
def explored(
    *arguments: object, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Runs `clew explore` as a process of its own; temporary files lie in `folder`."""
    folder.mkdir(exist_ok=True)
    source = str(Path(clew.__file__).parents[1])
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from clew.cli.app import main; main()",
            "explore",
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source, "TMPDIR": str(folder), **(environment or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def get(url: str, path: str) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    try:
        connection.request("GET", parts.path + path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def descendants(process: int) -> set[int]:
    """Returns the processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, pending = set(), [process]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.add(child)
            pending.append(child)
    return found


def until(condition: Callable[[], Any]) -> None:
    """Waits until something is the case."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never was the case")


def running(processes: set[int]) -> set[int]:
    found = set()
    for number in processes:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found.add(number)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "tmp"
    with explored(tiny, *QUICK, folder=temporary) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert get(url, "api/a/overview")["model"] == "tiny.txt"
        started = descendants(process.pid)
        assert started
        assert list(temporary.glob("clew-explore-*"))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == ""  # the URL's line was all
        assert "build a: done after" in err
        assert "Traceback" not in err
        assert not running(started)
        assert not list(temporary.iterdir())


def test_a_signal_ends_a_build_under_way(tmp_path: Path) -> None:
    lines = ["clew 1", "def @main(", "  %x: f32[2, 8]  // input x"]
    lines += [") -> (f32[2, 8],) {"]
    before = "%x"
    for n in range(3000):
        lines.append(f"  %v{n}: f32[2, 8] = tanh({before})  // t{n}:Tanh#0")
        before = f"%v{n}"
    lines += [f"  %r: (f32[2, 8],) = ({before},)", "  return %r", "}"]
    model = tmp_path / "long.txt"
    model.write_text("\n".join(lines) + "\n")
    temporary = tmp_path / "tmp"
    environment = {"CLEW_CACHE": "0"}
    with explored(model, *QUICK, "--no-fuse", folder=temporary, environment=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        (build,) = get(url, "api/start")["builds"]
        assert build["state"] == "compiling"
        until(lambda: descendants(process.pid))
        started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert not running(started)
        assert not list(temporary.iterdir())


def test_nothing_outlives_a_server_that_is_killed(tiny: Path, tmp_path: Path) -> None:
    with explored(tiny, *QUICK, folder=tmp_path / "tmp") as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        get(url, "api/a/overview")
        started = descendants(process.pid)
        assert started
        process.kill()
        process.wait()
        until(lambda: not running(started))


def test_other_hosts_are_warned_of(tmp_path: Path) -> None:
    with explored("--no-browser", "--host", "0.0.0.0", folder=tmp_path / "tmp") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://0.0.0.0:")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert "other machines can reach" in err


def test_the_browser_is_opened_if_asked(tmp_path: Path) -> None:
    opened, program = tmp_path / "opened", tmp_path / "browser.sh"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    program.chmod(0o755)
    with explored(
        "--browser", folder=tmp_path / "tmp", environment={"BROWSER": str(program)}
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline()
        until(opened.exists)
        assert opened.read_text() == url


def test_the_command_is_light() -> None:
    """`clew explore` imports neither compiler nor frontends before it serves."""
    program = (
        "import sys; import clew.cli.explore, clew.explorer.server\n"
        "heavy = {'onnx', 'llvmlite', 'clew.passes', 'clew.frontends'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    source = str(Path(clew.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": source}
    )
