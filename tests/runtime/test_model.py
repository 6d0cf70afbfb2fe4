"""Models called from many threads at once, and in a forked child, give what they give alone."""

import copy
import pickle
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.api.loaded_model import load_compiled
from clew.runtime.input_spec import InputSpec
from clew.serving.model import Model
from clew.support.errors import ClewError

CALLERS = 8
ROUNDS = 6


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs `work` for each number in a thread of its own, all at once; raises what one raises."""
    start = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def assert_same(given: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(given[name], value, strict=True)


@pytest.fixture(scope="module", params=["compiled", "loaded"])
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a network of the zoo compiled, or saved and loaded again, for some threads."""

    def get(name: str, threads: int) -> Model[Any, Any]:
        compiled = clew.compile(zoo.path(name), threads=threads)
        if request.param == "compiled":
            return compiled
        compiled.run(zoo.inputs(name))
        path = tmp_path_factory.mktemp("saved") / f"{name}.clew"
        compiled.save(path)
        return load_compiled(path, threads=threads)

    return get


@pytest.mark.parametrize("threads", [1, 2])
def test_one_model_in_many_threads(threads: int, make: Any) -> None:
    model = make("resnet_tiny", threads)
    feeds = [zoo.inputs("resnet_tiny", seed=n) for n in range(CALLERS)]
    expected = [model.run(feed) for feed in feeds]
    (name,) = model.output_names
    assert not np.array_equal(expected[0][name], expected[1][name])

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            assert_same(model.run(feeds[number]), expected[number])

    in_threads(CALLERS, work)


@pytest.mark.parametrize("threads", [1, 2])
def test_different_models_in_many_threads(threads: int, make: Any) -> None:
    names = ["keyword_spotting", "if_branches", "loop_recurrence", "bert_tiny_dynamic"]
    models = {name: make(name, threads) for name in names}
    feeds = {name: zoo.inputs(name) for name in names}
    expected = {name: model.run(feeds[name]) for name, model in models.items()}

    def work(number: int) -> None:
        for turn in range(ROUNDS):
            name = names[(number + turn) % len(names)]
            assert_same(models[name].run(feeds[name]), expected[name])

    in_threads(CALLERS, work)


def test_new_sizes_from_many_threads_are_built_once_each() -> None:
    model = clew.compile(zoo.path("bert_tiny_dynamic"), threads=2, cache=False)
    feeds = [zoo.inputs("bert_tiny_dynamic", batch=1, sequence=4 + n % 2) for n in range(CALLERS)]
    results: list[Any] = [None] * CALLERS

    def work(number: int) -> None:
        results[number] = model.run(feeds[number])

    in_threads(CALLERS, work)
    assert len(model._chain.kept) == 2
    assert model.builds_made == 1  # for all sizes
    for feed, result in zip(feeds, results, strict=True):
        assert_same(result, model.run(feed))


FORKING = """
import os
import numpy as np
import clew
import zoo
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # about threads: those that Python has not
model = clew.load_compiled({path!r}, threads=2)
feed = zoo.inputs("resnet_tiny")
expected = model.run(feed)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = all(
            np.array_equal(model.run(feed)[name], value)
            for _ in range(5)
            for name, value in expected.items()
        )
        os._exit(0 if same else 1)
    children.append(child)
model.run(feed)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
"""


def test_forked_children_run_a_loaded_model(
    tmp_path: Path, run_python: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    clew.compile(zoo.path("resnet_tiny"), threads=2).save(tmp_path / "model.clew")
    tools = str(Path(zoo.__file__).parents[1])
    program = FORKING.format(path=str(tmp_path / "model.clew"))
    ended = run_python(f"sys.path.insert(0, {tools!r})\n{program}")
    assert ended.returncode == 0, ended.stderr


def test_input_takes_numbers_exactly_and_names_at_will() -> None:
    spec = InputSpec("x", "float32", [2, "n"])
    assert not spec.is_static
    for size in (0, 1, 7):
        array = np.zeros((2, size), np.float32)
        assert spec.check(array) is array
    for shape in ((3, 1), (2,), (2, 1, 1)):
        with pytest.raises(ClewError, match="I042"):
            spec.check(np.zeros(shape, np.float32))
    with pytest.raises(ClewError, match="I043"):
        spec.check(np.zeros((2, 1), np.int32))


def test_another_size_has_a_hint_for_each_surface() -> None:
    spec = InputSpec("x", "float32", [1, 3])
    with pytest.raises(ClewError, match="I042") as caught:
        spec.check(np.zeros((2, 3), np.float32))
    assert "clew.load(model, inputs={'x': [2, 3]})" in caught.value.text()
    assert "--shape x=2,3" in caught.value.text("cli")
    assert "input shapes x=2x3" in caught.value.text("page")
    with pytest.raises(ClewError, match="the input has 2 axes"):
        spec.check(np.zeros(3, np.float32))


def test_input_takes_what_becomes_an_array() -> None:
    spec = InputSpec("x", np.float64, [2])
    np.testing.assert_array_equal(spec.check([1.0, 2.0]), [1, 2])
    values = [np.zeros(1), np.zeros(2)]
    assert InputSpec("list", None, []).check(values) is values


def test_copies_are_the_model_and_it_is_not_pickled(make: Any, tmp_path: Path) -> None:
    model = make("resnet_tiny", 1)
    assert copy.copy(model) is model
    assert copy.deepcopy({"model": model})["model"] is model
    with pytest.raises(ClewError, match=r"(?s)I048.*save\(path\)"):
        pickle.dumps(model)
