"""Snapshot folders of model hubs: which links are followed, and which are not whatever is asked."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from clew.frontends.onnx.file.cut import OnnxCutter
from clew.frontends.onnx.file.external import ExternalData
from clew.frontends.onnx.file.listing import list_model
from clew.support.errors import ClewError, InputError, ModelError
from clew.support.links import current_links, following, set_default_links

WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)
HASH = "3f" * 32


def stored(location: str) -> bytes:
    """Returns a model whose weight lies in another file."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    weight.dims.extend([2, 3])
    weight.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    opsets = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository as a hub's client lays it out; beside it is a secret."""
    root = tmp_path / "hub" / "models--org--name"
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("abc")
    (root / "blobs" / HASH).write_bytes(WEIGHTS.tobytes())
    (tmp_path / "hub" / "secret").write_bytes(b"\1" * 24)
    (root / "snapshots" / "abc").mkdir(parents=True)
    return root


def snapshot(root: Path, target: str, *, folder: str = "", location: str = "model.data") -> Path:
    """Writes a model into the snapshot, whose weights are a link to `target`; returns its path."""
    inside = root / "snapshots" / "abc" / folder
    inside.mkdir(exist_ok=True)
    (root / "blobs" / "m").write_bytes(stored(location))
    path = inside / "model.onnx"
    path.symlink_to(os.path.relpath(root / "blobs" / "m", inside))
    (inside / location).symlink_to(target)
    return path


def weights_of(path: Path, links: str | None = "snapshot") -> np.ndarray:
    found: np.ndarray = clew.load(path, links=links).main.body.fields[0].args[1].data
    return found


def refused(path: Path) -> ClewError:
    with pytest.raises(ModelError) as caught:
        clew.load(path, links="snapshot")
    assert caught.value.code == "M005", caught.value
    assert "w" in caught.value.message
    return caught.value


def test_links_into_the_blobs_are_followed_where_that_is_asked_for(repository: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    np.testing.assert_array_equal(weights_of(path), WEIGHTS)
    x = np.ones((2, 3), np.float32)
    (y,) = (
        clew.compile(path, limits=clew.Limits(links="snapshot"), threads=1, cache=False)
        .run({"x": x})
        .values()
    )
    np.testing.assert_array_equal(y, WEIGHTS + 1)
    with following("snapshot"):  # whatever else reads the file
        assert list_model(path).main.lines
        assert OnnxCutter(path).names
    assert current_links() == "none"


def test_the_error_without_it_names_the_option(repository: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    with pytest.raises(ModelError) as caught:
        clew.load(path)
    assert caught.value.code == "M005"
    assert "'model.data', which is a link" in caught.value.message
    assert 'clew.load(..., links="snapshot")' in caught.value.hint
    assert "--links snapshot" in caught.value.hint


def test_the_choice_of_the_process(repository: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    set_default_links("snapshot")
    try:
        np.testing.assert_array_equal(weights_of(path, None), WEIGHTS)
        with pytest.raises(ModelError):
            weights_of(path, "none")
    finally:
        set_default_links("none")


def test_folders_of_a_snapshot(repository: Path):
    path = snapshot(repository, f"../../../blobs/{HASH}", folder="onnx")
    np.testing.assert_array_equal(weights_of(path), WEIGHTS)


def test_plain_files_in_a_snapshot(repository: Path):
    path = snapshot(repository, "unused", location="other")
    (path.parent / "other").unlink()
    (path.parent / "other").write_bytes(WEIGHTS.tobytes())
    np.testing.assert_array_equal(weights_of(path), WEIGHTS)


def test_a_link_with_an_absolute_target(repository: Path):
    path = snapshot(repository, str(repository / "blobs" / HASH))
    np.testing.assert_array_equal(weights_of(path), WEIGHTS)


def test_a_snapshot_reached_through_a_link_of_the_users(repository: Path, tmp_path: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    (tmp_path / "mine").symlink_to(path.parent)
    np.testing.assert_array_equal(weights_of(tmp_path / "mine" / "model.onnx"), WEIGHTS)


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "../../../secret",
        "../../blobs/../../secret",
        f"../../../models--org--name/blobs/../blobs/../../secret/../{HASH}",
        "../../refs/main",
        "../../blobs",
        "../../blobs/",
        "../../blobs/..",
        f"../../blobs/{HASH}/",
        "../../blobs/missing",
        "model.onnx",
        "..",
        ".",
        "/proc/self/mem",
        "/dev/zero",
    ],
)
def test_other_links_are_refused(repository: Path, target: str):
    assert refused(snapshot(repository, target)).hint


def test_a_chain_of_links(repository: Path):
    (repository / "blobs" / "first").symlink_to(HASH)
    refused(snapshot(repository, "../../blobs/first"))
    (repository / "blobs" / "first").unlink()
    (repository / "blobs" / "first").symlink_to("/etc/passwd")
    with pytest.raises(ModelError):
        clew.load(repository / "snapshots" / "abc" / "model.onnx", links="snapshot")


def test_links_in_a_circle(repository: Path):
    refused(snapshot(repository, "model.data"))


def test_a_folder_that_is_a_link(repository: Path):
    path = snapshot(repository, "unused", location="w")
    (path.parent / "w").unlink()
    (path.parent / "sub").symlink_to("../../blobs")
    (repository / "blobs" / "m").write_bytes(stored(f"sub/{HASH}"))
    refused(path)


def test_blobs_that_are_a_link(repository: Path, tmp_path: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    (repository / "blobs").rename(tmp_path / "elsewhere")
    (repository / "blobs").symlink_to(tmp_path / "elsewhere")
    refused(path)


def test_blobs_that_are_no_plain_files(repository: Path, tmp_path: Path):
    os.mkfifo(repository / "blobs" / "pipe")
    refused(snapshot(repository, "../../blobs/pipe"))
    os.link(tmp_path / "hub" / "secret", repository / "blobs" / "hard")
    (repository / "snapshots" / "abc" / "model.data").unlink()
    (repository / "snapshots" / "abc" / "model.data").symlink_to("../../blobs/hard")
    path = repository / "snapshots" / "abc" / "model.onnx"
    assert "hard links" in refused(path).message


def test_names_with_dots_in_the_model_stay_refused(repository: Path):
    path = snapshot(repository, f"../../blobs/{HASH}")
    (repository / "blobs" / "m").write_bytes(stored(f"../../blobs/{HASH}"))
    assert "outside" in refused(path).message


def test_a_link_that_is_exchanged_meanwhile(repository: Path):
    """Whatever the link leads to when it is read: never is anything else opened than a blob."""
    path = snapshot(repository, f"../../blobs/{HASH}")
    link, stop = path.parent / "model.data", threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in ("../../../secret", f"../../blobs/{HASH}"):
                new = path.parent / "new"
                new.symlink_to(target)
                os.replace(new, link)

    refusals: set[str] = set()
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            try:
                found = weights_of(path)
            except ClewError as error:
                refusals.add(error.code)
                continue
            np.testing.assert_array_equal(found, WEIGHTS)
    finally:
        stop.set()
        thread.join()
    assert refusals <= {"M005"}


def test_what_was_loaded_is_read_from_the_same_blob(repository: Path):
    """The link may lead elsewhere later: a changed blob is noticed, a changed link is not asked."""
    path = snapshot(repository, f"../../blobs/{HASH}")
    with following("snapshot"):
        part = ExternalData(path).part("w", {"location": "model.data"}, 24)
    (path.parent / "model.data").unlink()
    (path.parent / "model.data").symlink_to("/etc/passwd")
    assert part.read().tobytes() == WEIGHTS.tobytes()
    (repository / "blobs" / HASH).write_bytes(b"\1" * 24)
    with pytest.raises(ModelError) as caught:
        part.read()
    assert caught.value.code == "M013"


def test_a_model_outside_any_snapshot(tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(stored("w"))
    with pytest.raises(ModelError) as caught:
        clew.load(tmp_path / "model.onnx", links="snapshot")
    assert caught.value.code == "M045"
    assert "model.onnx" in caught.value.message
    assert "REPOSITORY/snapshots/REVISION" in caught.value.hint


def test_no_such_choice(tmp_path: Path):
    with pytest.raises(InputError) as caught:
        clew.load(tmp_path / "model.onnx", links="all")
    assert caught.value.code == "I340"
    assert "'all'" in caught.value.message
    assert "snapshot" in caught.value.hint
