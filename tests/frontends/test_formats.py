"""The list of formats."""

from __future__ import annotations

import subprocess
import sys


def test_the_list_imports_no_reader_that_few_models_need() -> None:
    program = (
        "import sys\n"
        "import clew.frontends.formats\n"
        "found = [m for m in sys.modules if m.startswith('clew.frontends.')]\n"
        "others = ('tflite', 'gguf', 'checkpoint', 'torch')\n"
        "readers = [m for m in found if m.split('.')[2] in others and m.count('.') > 2]\n"
        "light = {'clew.frontends.tflite.format', 'clew.frontends.gguf.format',\n"
        "         'clew.frontends.checkpoint.format', 'clew.frontends.checkpoint.files'}\n"
        "assert set(readers) == light, readers\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
