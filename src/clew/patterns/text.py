"""The text of patterns: `nn.relu(add(nn.conv2d(*, constant), constant))`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Written(Protocol):
    """A pattern, as needed to print it."""

    @property
    def parts(self) -> Sequence[Written]:
        """The patterns that this one consists of."""
        ...

    def written(self, parts: Sequence[str]) -> str:
        """Returns the pattern's text, given the text of its parts."""
        ...


def text(pattern: Written) -> str:
    """Returns a pattern's text. A pattern that occurs several times is numbered: `#1=*`, `#1`."""
    counts: dict[int, int] = {}
    seen: list[Written] = [pattern]
    while seen:  # each part is entered once, so shared parts do not multiply
        part = seen.pop()
        counts[id(part)] = counts.get(id(part), 0) + 1
        if counts[id(part)] == 1:
            seen.extend(part.parts)
    numbers: dict[int, int] = {}
    done: dict[int, str] = {}
    stack: list[tuple[Written, bool]] = [(pattern, False)]
    texts: list[str] = []
    while stack:
        part, ready = stack.pop()
        if ready:
            count = len(part.parts)
            below, texts = texts[len(texts) - count :], texts[: len(texts) - count]
            words = part.written(below)
            if counts[id(part)] > 1:
                numbers[id(part)] = len(numbers) + 1
                done[id(part)] = f"#{numbers[id(part)]}"
                words = f"#{numbers[id(part)]}={words}"
            texts.append(words)
        elif id(part) in done:
            texts.append(done[id(part)])
        else:
            stack.append((part, True))
            stack.extend((p, False) for p in reversed(part.parts))
    return texts[0]
