"""Work in processes of its own: cancelled, too long, too large, dead."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew.explorer.builds import builds as builds_module
from clew.explorer.builds.builds import Limits, build_name
from clew.explorer.builds.jobs import Job, Jobs
from clew.explorer.builds.lanes import Lanes
from clew.explorer.builds.processes import Answer
from clew.explorer.failures import Cancelled, Failure, died, error_info
from clew.support.errors import CompileError, InputError

# 2 GiB of weights, in a few bytes.
LARGE = """clew 1
def @main(
  %x: f32[1, 268435456]  // input x
) -> (f32[1, 2],) with outputs=["y"] {
  %0: f32[268435456, 2] = const splat 0.5  // parameter w
  %1: f32[1, 2] = nn.matmul(%x, %0)  // mm:MatMul#0
  %2: (f32[1, 2],) = (%1,)
  return %2
}
"""


def is_kernel(event: Any) -> bool:
    """Whether some kernels have been handed to LLVM's processes."""
    words = event["text"].split()
    return words[0] == "kernel" and int(words[1]) > 4


def group_members(group: int) -> list[int]:
    """Returns the processes of a group that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def worker_of(client: Any, build: str = "a") -> int:
    builds = client.serving.builds
    return int(client.call(lambda: builds.get(build).worker.pid))


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", "0")


@pytest.mark.usefixtures("cold")
def test_a_build_that_is_cancelled(start: Callable[..., Any], texts: Any) -> None:
    client = start()
    made = client.upload(texts.long(700)).json
    last = client.events(made["job"], until=is_kernel)[-1]
    assert last["kind"] == "progress", last
    group = worker_of(client)
    assert len(group_members(group)) > 1  # LLVM's processes belong to it
    assert client.request("DELETE", f"api/jobs/{made['job']}").status == 204
    assert client.ended(made["job"])["kind"] == "cancelled"
    (build,) = client.get("api/start").json["builds"]
    assert (build["state"], build["error"]) == ("cancelled", None)
    asked = client.get("api/a/overview")
    assert (asked.status, asked.json["code"]) == (409, "I220")
    until(lambda: not group_members(group))
    assert client.ended(client.upload(texts.tiny).json["job"])["kind"] == "done"


def until(condition: Callable[[], Any]) -> None:
    """Waits until something is the case."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never was the case")


@pytest.mark.usefixtures("cold")
def test_a_build_that_takes_too_long(start: Callable[..., Any], texts: Any) -> None:
    client = start(limits=Limits(seconds=0.05))
    made = client.upload(texts.long(500)).json
    event = client.ended(made["job"])
    assert (event["kind"], event["error"]["code"]) == ("failed", "I219")
    assert "--time-limit" in event["error"]["hint"]


def test_a_build_that_needs_too_much_memory(start: Callable[..., Any], texts: Any) -> None:
    client = start(limits=Limits(memory_bytes=1 << 30))
    event = client.ended(client.upload(LARGE).json["job"])
    assert event["kind"] == "failed"
    assert event["error"]["code"] == "I218", event
    assert client.ended(client.upload(texts.tiny).json["job"])["kind"] == "done"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_dead_process_is_replaced(
    start: Callable[..., Any], tiny: Path, number: signal.Signals
) -> None:
    client = start(tiny)
    before = client.get("api/a/overview").json
    os.kill(worker_of(client), number)
    until(lambda: not client.call(lambda: client.serving.builds.get("a").is_alive))
    after = client.get("api/a/overview").json
    assert [k["name"] for k in after["kernels"]] == [k["name"] for k in before["kernels"]]


def test_a_process_that_dies_while_it_compiles(start: Callable[..., Any], texts: Any) -> None:
    client = start()
    made = client.upload(texts.long(300)).json
    client.events(made["job"], until=lambda event: True)
    os.kill(worker_of(client), signal.SIGSEGV)
    event = client.ended(made["job"])
    assert event["kind"] == "failed"
    assert event["error"]["code"] == "I217"
    assert "SIGSEGV" in event["error"]["message"]


def test_more_builds_than_processes(
    start: Callable[..., Any], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds_module, "_MOST_ALIVE", 2)
    client = start(tiny)
    assert client.get("api/a/overview").status == 200  # it is there before the others
    for level in (0, 1):
        made = client.post(
            "api/builds", {"model": "tiny.txt", "options": {"opt_level": level, "threads": 1}}
        ).json
        assert client.ended(made["job"])["kind"] == "done"
    builds = client.serving.builds
    alive = [b for b in "abc" if client.call(lambda b=b: builds.get(b).is_alive)]
    assert alive == ["b", "c"]
    assert client.get("api/a/links").status == 200  # compiled again


def test_a_build_is_measured(start: Callable[..., Any], tiny: Path) -> None:
    client = start(tiny)
    before = client.get("api/a/heat/time")
    assert (before.status, before.json["code"]) == (404, "I230")
    started = client.post("api/a/actions/profile", {"seconds": 0.1, "sample": 0.0})
    assert started.status == 202, started.body
    job = started.json["job"]
    assert client.ended(job)["kind"] == "done"
    assert client.get(f"api/jobs/{job}/result").json["rounds"] > 0
    assert client.get("api/a/heat/time").json["metric"] == "time"
    assert client.get("api/a/overview").json["measured"]


def test_an_action_that_is_cancelled(start: Callable[..., Any], tiny: Path) -> None:
    client = start(tiny)
    asked = client.post("api/a/actions/profile", {"seconds": 30.0})
    job = asked.json["job"]
    client.events(job, until=lambda event: True)
    assert client.get("api/a/stage/0").status == 200  # answered meanwhile
    unfinished = client.get(f"api/jobs/{job}/result")
    assert (unfinished.status, unfinished.json["code"]) == (409, "I224")
    client.request("DELETE", f"api/jobs/{job}")
    assert client.ended(job)["kind"] == "cancelled"
    refused = client.get(f"api/jobs/{job}/result")
    assert (refused.status, refused.json["code"]) == (409, "I220")
    assert client.get("api/a/overview").status == 200


def test_an_action_that_fails_says_why(start: Callable[..., Any], tiny: Path) -> None:
    client = start(tiny)
    asked = client.post("api/a/actions/schedule", {"kernel": 99, "steps": []})
    event = client.ended(asked.json["job"])
    assert (event["kind"], event["error"]["code"]) == ("failed", "I200")
    assert client.get("api/start").json["builds"][0]["state"] == "ready"


def test_the_number_of_builds_is_bounded(start: Callable[..., Any], tiny: Path) -> None:
    client = start(tiny)
    wanted = {"model": "tiny.txt", "options": {"opt_level": 9}}  # fails at once
    made = [client.post("api/builds", wanted) for _ in range(16)]
    refused = [answer for answer in made if answer.status != 201]
    assert refused
    assert {(r.status, r.json["code"]) for r in refused} == {(429, "I215")}


def test_errors_lose_folders(tmp_path: Path) -> None:
    error = CompileError("C001", f"{tmp_path}/model.onnx is bad", hint=f"see {tmp_path}/x/y.ll")
    info = error_info(error, [tmp_path])
    assert (info.message, info.hint) == ("model.onnx is bad", "see x/y.ll")
    internal = error_info(ValueError(f"{Path.home()}/secret"))
    assert internal.code == "I221"
    assert str(Path.home()) not in internal.message
    assert error_info(MemoryError()).code == "I218"
    wrapped = CompileError("C080", "the pass failed")
    wrapped.__cause__ = MemoryError()
    assert error_info(wrapped).code == "I218"


def test_how_processes_die_is_said() -> None:
    assert "SIGKILL" in died(-signal.SIGKILL).message
    assert "memory" in died(-signal.SIGKILL).hint
    assert "exit code 3" in died(3).message


def test_a_container_bounds_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "memory.max"
    monkeypatch.setattr(builds_module, "_MEMORY_QUOTA", quota)
    machine = builds_module.default_memory_bytes()
    quota.write_text("max\n")
    assert builds_module.default_memory_bytes() == machine
    quota.write_text("1000\n")
    assert builds_module.default_memory_bytes() == 800


def test_names_of_builds() -> None:
    assert [build_name(n) for n in (0, 1, 25, 26, 27)] == ["a", "b", "z", "ba", "bb"]


def test_jobs_give_results_errors_and_cancellations() -> None:
    async def work() -> None:
        jobs = Jobs()

        async def fine(job: Job) -> Answer:
            job.say("half", 0.5)
            return Answer(b"1")

        async def bad(job: Job) -> Answer:
            raise Failure(InputError("I216", "no model"))

        async def broken(job: Job) -> Answer:
            raise ZeroDivisionError("oh")

        async def endless(job: Job) -> Answer:
            return await job.race(asyncio.Event().wait(), 60)  # type: ignore[arg-type]

        made = [jobs.start("x", work) for work in (fine, bad, broken, endless)]
        made[-1].cancel_asked.set()
        for job in made:
            await job.ended()
        assert [job.outcome for job in made] == ["done", "failed", "failed", "cancelled"]
        assert [job.error.code for job in made if job.error] == ["I216", "I221"]
        followed = [e async for e in made[0].follow()]
        assert [e[1].kind for e in followed if e] == ["progress", "done"]
        slow = jobs.start("x", endless)
        await asyncio.sleep(0)
        beats = [e async for e in _first(slow, 2)]
        assert beats == [None, None]
        await jobs.cancel_all()
        assert slow.outcome == "cancelled"
        for _ in range(16):
            jobs.start("x", endless)
        with pytest.raises(Failure) as refused:
            jobs.start("x", endless)
        assert (refused.value.info.code, refused.value.status) == ("I215", 429)
        await jobs.cancel_all()

    asyncio.run(work())


async def _first(job: Job, count: int) -> Any:
    async for event in job.follow(heartbeat_s=0.001):
        yield event
        count -= 1
        if not count:
            return


def test_nobody_compiles_while_something_is_measured() -> None:
    async def work() -> None:
        lanes, job = Lanes(2), Job("j", "x")
        order: list[str] = []
        first_in, first_out = asyncio.Event(), asyncio.Event()

        async def compiling() -> None:
            async with lanes.compiling(job):
                order.append("compile")
                first_in.set()
                await first_out.wait()
            order.append("compiled")

        async def measuring() -> None:
            async with lanes.measuring(job):
                order.append("measure")
                await asyncio.sleep(0)
                order.append("measured")

        tasks = [asyncio.create_task(compiling())]
        await first_in.wait()
        tasks += [asyncio.create_task(measuring()) for _ in range(2)]
        await asyncio.sleep(0)
        first_out.set()
        await asyncio.gather(*tasks)
        assert order[0] == "compile"
        assert order.index("compiled") < order.index("measured")
        measured = [text for text in order if text.startswith("measure")]
        assert measured == ["measure", "measured"] * 2

    asyncio.run(work())


def test_racing_takes_the_time_limit() -> None:
    async def work() -> None:
        job = Job("j", "x")
        with pytest.raises(Failure) as late:
            await job.race(asyncio.Event().wait(), 0.001)  # type: ignore[arg-type]
        assert late.value.info.code == "I219"
        job.cancel_asked.set()
        with pytest.raises(Cancelled):
            await job.race(asyncio.Event().wait(), 60)  # type: ignore[arg-type]

    asyncio.run(work())
