"""What the site adds to docs/: the order of its pages, a reference, linked sources, a front page.

The order is that of the tables in docs/README.md and of the tables of its folders. A link from a
page to a file of the repository leads to a page with that file's text, so the site is complete
without a network.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SITE: Final = Path(__file__).resolve().parent
ROOT: Final = SITE.parent
DOCS: Final = ROOT / "docs"
sys.path.insert(0, str(SITE))

import record  # noqa: E402
import reference  # noqa: E402

_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+\.md)\) \|", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
_LANGUAGES: Final = {".py": "python", ".ts": "typescript", ".json": "json", ".txt": "text"}
# A longer file is shown by its first lines.
_LINES: Final = 2000


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the pages' order, and the version below them."""
    version = re.search(r'VERSION: Final = "([^"]+)"', (ROOT / "src/clew/version.py").read_text())
    assert version is not None
    config.copyright = f"clew {version[1]} · Apache-2.0"
    config.nav = [
        {"clew": "index.md"},
        *_sections(),
        {"Reference": ["reference/index.md", *(_entry(p) for p in reference.pages())]},
    ]
    return config


def _sections() -> list[dict[str, Any]]:
    """Returns the sections of docs/README.md, with the pages of each."""
    parts = re.split(r"^## (.+)$", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
    found = []
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        rows: list[Any] = [{name: path} for name, path in _ROW.findall(text)]
        nested = [_folder(row) for row in rows]
        if nested:
            found.append({title: nested})
    found[0]["Start"].insert(0, {"All pages": "README.md"})
    return found


def _folder(row: dict[str, str]) -> dict[str, Any]:
    """Returns a page, or the pages of its folder if it lists one."""
    ((name, path),) = row.items()
    if not path.endswith("/README.md"):
        return row
    folder = posixpath.dirname(path)
    pages = _ROW.findall((DOCS / path).read_text())
    return {name: [path, *({n: posixpath.join(folder, p)} for n, p in pages)]}


def _entry(page: tuple[str, str, str]) -> dict[str, str]:
    file, title, _ = page
    return {title: f"reference/{file}"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the front page, the reference and the files of the repository that pages link to."""
    contents = files.get_file_from_path("README.md")
    assert contents is not None
    contents.dest_uri = contents.url = "contents.html"
    front = "---\ntemplate: home.html\nhide: [navigation, toc]\ntitle: clew\n---\n"
    made = {"index.md": front, "reference/index.md": _reference()}
    made |= {f"reference/{file}": text for file, _, text in reference.pages()}
    for target in _linked(files):
        made[_shown_at(target)] = _source(target)
    made["assets/thread-data.js"] = f"window.CLEW_THREAD = {json.dumps(record.record())};\n"
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def _reference() -> str:
    rows = "\n".join(
        f"| [{title}]({file}) | {', '.join(f'`{name}`' for name in reference.GROUPS[title])} |"
        for file, title, _ in reference.pages()
        if title in reference.GROUPS
    )
    rooms = "\n".join(
        f"| [{title.partition(' (')[0]}](clew.{room}.md) | `clew.{room}` |"
        for room, title in reference.ROOMS.items()
    )
    return (
        "# Reference\n\nEvery public name of the package `clew`, from its docstrings.\n\n"
        f"| page | names |\n|---|---|\n{rows}\n\n"
        f"Modules:\n\n| page | module |\n|---|---|\n{rooms}\n"
    )


def _linked(files: Files) -> set[str]:
    """Returns the paths in the repository of files outside docs/ that pages link to."""
    found = set()
    for file in files.documentation_pages():
        for _, target, _, _ in _LINK.findall(file.content_string):
            if path := _outside(file.src_uri, target):
                found.add(path)
    return found


def _outside(page: str, target: str) -> str | None:
    """Returns the path of a link's file or folder if it is outside docs/, relative to the root."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith(("docs/", "..")) or not (ROOT / path).exists() else path


def _shown_at(path: str) -> str:
    return f"source/{path}.md" if path.endswith(".md") else f"source/{path.replace('.', '-')}.md"


def _source(path: str) -> str:
    """Returns a page with a file's text, or with a folder's files."""
    file = ROOT / path
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    if file.is_dir():
        return head + "\n".join(f"- `{p.name}`" for p in sorted(file.iterdir()) if p.name[0] != "_")
    text = file.read_text()
    if file.suffix == ".md":  # its own links start in another folder
        return head + _LINK.sub(r"`\2`", text.replace("](", "](")).partition("\n")[2]
    lines = text.splitlines()
    cut = "" if len(lines) <= _LINES else f"\n\nThe first {_LINES} of {len(lines)} lines."
    language = _LANGUAGES.get(file.suffix, "text")
    return f"{head}````{language}\n" + "\n".join(lines[:_LINES]) + f"\n````{cut}\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to files outside docs/ to the pages that show them."""
    here = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        path = _outside(here, match[2])
        if path is None:
            return match[0]
        there = posixpath.relpath(_shown_at(path), posixpath.dirname(here) or ".")
        return f"{match[1]}{there}{match[4]}"

    return markdown if here.startswith(("source/", "reference/")) else _LINK.sub(led, markdown)
