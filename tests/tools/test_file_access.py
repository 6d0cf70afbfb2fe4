"""The check of who opens files: it finds every way, and none in clew but in its homes."""

from __future__ import annotations

import pytest

import file_access


@pytest.mark.parametrize(
    "line",
    [
        "open(name)", "with open(name, 'w') as f: pass", "import io; io.open(name)",
        "import os; os.open(name, 0)", "from os import open as o; o(name, 0)",
        "import numpy as np; np.load(name)", "import numpy as np; np.savez(name, x=1)",
        "from numpy import fromfile; fromfile(name)", "array.tofile(name)",
        "path.read_text()", "(folder / 'x').write_bytes(b'')", "Path(name).open()",
        "Path(name).open('rb')", "path.open(mode='w')", "path.open(encoding='utf-8')",
        "import runpy; runpy.run_path(name)", "import tempfile; tempfile.mkdtemp()",
        "import shutil; shutil.copyfile(a, b)", "import zipfile; zipfile.ZipFile(name)",
        "import onnx; onnx.load(name)", "parquet.write_table(table, path)",
        "parquet.ParquetFile(name)", "path.is_file()", "(folder / 'x').exists()", "path.is_dir()",
    ],
)  # fmt: skip
def test_what_opens_a_file(line: str) -> None:
    assert len(list(file_access.complaints("x.py", line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "builds.open(model, options)", "read_text(name)", "cache.open(key)",
        "import os; os.fdopen(3)", "import mmap; mmap.mmap(file, 0)",
        "import os; os.path.exists(a)",
        "pillow.open(stream, formats=known)", "parquet.write_table(table, stream)",
        "class A:\n def open(self): return 1",
    ],
)  # fmt: skip
def test_what_does_not(line: str) -> None:
    assert not list(file_access.complaints("x.py", line))


@pytest.mark.exhaustive  # `make lint` checks it, too
def test_clew_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert file_access.main() == 0, capsys.readouterr().out
    for home in file_access.HOMES:
        text = (file_access.SOURCE / home).read_text()
        assert list(file_access.complaints(home, text)), home
