"""Invisible characters. In a model's names they can move a terminal's cursor, reverse the text
direction, or make two names look alike.
"""

from __future__ import annotations

import re
from typing import Final

# Control characters except line breaks and tabs; marks, embeddings, overrides and isolates of
# direction; line separators; zero-width characters; lone surrogates, which no file accepts.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Returns a text with invisible characters escaped, such as `\u202e`. Line breaks and tabs
    stay.
    """
    return text if text.isprintable() else UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
