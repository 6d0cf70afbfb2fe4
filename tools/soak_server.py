"""Soak test of `clew serve`: clients come, read and are killed, and each text is compared.

`python tools/soak_server.py FOLDER --minutes 10 --clients 16` starts the server in a process of its
own. Each client asks for one of some prompts of different lengths, as a stream or whole; once a
second, the connection of one is closed in the middle of its answer. Every text must equal that of
`clew.generate` alone (of a killed client: begin like it), and no request may fail. The memory of
the server counts as flat if the second half of the run added less than `--slack` MiB. The exit code
is 1 if a text was wrong, a request failed, or memory grew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import clew
from soak import Reading, growth, resident

_COMMAND = "from clew.cli.program import main; main()"
_KEY = "soak"
_LONGEST_PROMPT = 60
_LONGEST_ANSWER = 40


@dataclass(frozen=True)
class Case:
    """A prompt, the most tokens of its answer, and the answer of `clew.generate` alone."""

    prompt: list[int]
    most: int
    text: str


def cases(folder: Path, count: int, seed: int) -> list[Case]:
    """Returns prompts of many lengths and their answers, generated one after another."""
    model = clew.language_model(folder, threads=1)
    words = random.Random(seed)
    made: list[Case] = []
    known = model.wiring.vocabulary or 2
    while len(made) < count:
        prompt = [words.randrange(3, known) for _ in range(words.randint(1, _LONGEST_PROMPT))]
        most = words.randint(1, _LONGEST_ANSWER)
        model.forget()
        made.append(Case(prompt, most, clew.generate(model, prompt, max_tokens=most).text))
    return made


@dataclass
class Counts:
    """What happened so far, and the connections that may be closed."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0
    open: dict[int, socket.socket] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def kill_one(self, choose: random.Random) -> None:
        """Closes the connection of a client."""
        with self.lock:
            left = sorted(self.open.keys() - self.killed)
            if left:
                number = choose.choice(left)
                self.killed.add(number)
                with suppress(OSError):
                    self.open[number].shutdown(socket.SHUT_RDWR)


class Client(threading.Thread):
    """Asks for one text after another until `ends`."""

    def __init__(self, number: int, port: int, known: list[Case], of: Counts, ends: float) -> None:
        super().__init__(daemon=True)
        self._number, self._port, self._known, self._of = number, port, known, of
        self._ends, self._choose = ends, random.Random(number)

    def run(self) -> None:
        """Runs the client."""
        while time.monotonic() < self._ends:
            case, streams = self._choose.choice(self._known), self._choose.random() < 0.7
            text, error = self._ask(case, streams)
            with self._of.lock:
                self._of.open.pop(self._number, None)
                was_killed = self._number in self._of.killed
                self._of.killed.discard(self._number)
                self._note(case, text, error, was_killed=was_killed)

    def _note(self, case: Case, text: str, error: str, *, was_killed: bool) -> None:
        done, wrong = self._of.done, self._of.wrong
        if error and not was_killed:
            wrong.append(f"a request failed: {error}")
        elif error:
            done["killed"] += 1
            if not case.text.startswith(text):
                wrong.append(f"a part: {text!r} of {case.text!r}")
        else:
            done["whole"] += 1
            if text != case.text:
                wrong.append(f"{text!r}, expected {case.text!r}")

    def _ask(self, case: Case, streams: bool) -> tuple[str, str]:
        """Returns the text so far and what failed."""
        body = {"prompt": case.prompt, "max_tokens": case.most, "stream": streams}
        text = ""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            connection.connect()
            with self._of.lock:
                self._of.open[self._number] = connection.sock
            head = {"Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), head)
            answer = connection.getresponse()
            if answer.status != 200:
                return text, f"status {answer.status}"
            if not streams:
                return str(json.loads(answer.read())["choices"][0]["text"]), ""
            for line in answer:
                data = line.decode().strip().removeprefix("data: ")
                if data == "[DONE]":
                    return text, ""
                if data:
                    found: Any = json.loads(data)
                    text += found["choices"][0]["text"]
            return text, "the stream ended early"
        except (OSError, HTTPException, ValueError) as error:
            return text, repr(error)
        finally:
            connection.close()


def started(folder: Path, clients: int) -> tuple[subprocess.Popen[str], int]:
    """Returns a server and its port."""
    command = [sys.executable, "-c", _COMMAND, "serve", str(folder), "--port", "0"]
    command += ["--key", _KEY, "--running", "8", "--waiting", str(2 * clients), "--threads", "1"]
    command += ["--prefix-memory", "8"]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    for line in made.stdout:
        if line.startswith("http://"):
            return made, int(line.rsplit(":", 1)[1].split("/")[0])
    raise SystemExit("the server did not start")


def _threads(process: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{process}/fd")), len(os.listdir(f"/proc/{process}/task"))


def main() -> int:
    """Runs the soak test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=8.0)
    asked = parser.parse_args()
    known = cases(asked.folder, asked.prompts, asked.seed)
    server, port = started(asked.folder, asked.clients)
    start, counts = time.monotonic(), Counts()
    ends = start + 60 * asked.minutes
    readings: list[Reading] = []
    try:
        clients = [Client(n, port, known, counts, ends) for n in range(asked.clients)]
        for client in clients:
            client.start()
        choose, number = random.Random(asked.seed), 0
        while time.monotonic() < ends:
            time.sleep(1.0)
            counts.kill_one(choose)
            number += 1
            if number % 10 == 0:
                seconds, done = round(time.monotonic() - start, 1), sum(counts.done.values())
                memory = round(resident(server.pid), 1)
                readings.append(Reading(seconds, done, memory, 0.0, *_threads(server.pid)))
                print(readings[-1], dict(counts.done), len(counts.wrong), flush=True)
        for client in clients:
            client.join(120)
    finally:
        server.terminate()
        server.wait(600)  # it may be starved on a busy machine
    added = growth(readings)
    for text in counts.wrong[:10]:
        print(f"wrong: {text}")
    print(
        f"{counts.done['whole']} texts equal those of serial runs, {counts.done['killed']} clients "
        f"killed, {len(counts.wrong)} wrong; the second half added {added:.1f} MiB"
    )
    return 1 if counts.wrong or added > asked.slack else 0


if __name__ == "__main__":
    sys.exit(main())
