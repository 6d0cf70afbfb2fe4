"""The list of networks, a file for each library or kind."""

from collections.abc import Iterator

from exports.entries import Entry
from exports.networks import (
    decoders,
    detection,
    encoders,
    of_timm,
    of_torchvision,
    plain,
    sound,
    translators,
    vision,
)

_FILES = (
    detection, of_torchvision, vision, of_timm, encoders, decoders, translators, sound, plain,
)  # fmt: skip


def entries() -> Iterator[Entry]:
    """Yields every entry."""
    for file in _FILES:
        yield from file.entries()
