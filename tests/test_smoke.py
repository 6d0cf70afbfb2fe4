"""Runs first, in under five seconds: is there an installed package to test at all?"""

import importlib.metadata
import importlib.resources


def test_package_is_installed_and_typed() -> None:
    assert importlib.metadata.version("clew")
    assert importlib.resources.files("clew").joinpath("py.typed").is_file()


def test_console_script_is_declared() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="clew")
    assert [script.value for script in scripts] == ["clew.cli.program:main"]
