"""Inputs like those of users, by kind: photographs, pages, speech, words, files.

Photographs and scanned pages come from scikit-image's package, words from the pages in `docs`, and
files from Python's own. Speech is made. Where the package cannot be had, pictures are made, too.
"""

from __future__ import annotations

import re
import sysconfig
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from exports.packages import NotThere, file_in

Array = np.ndarray[Any, Any]
Kind = Callable[[np.random.Generator, tuple[int, ...]], Array]
_RATE_HZ: Final = 16000
_IMAGES: Final = "scikit-image==0.26.0"
_PHOTOGRAPHS: Final = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "color.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)
_SCANS: Final = ("page.png", "text.png")
_MEAN: Final = np.array([0.485, 0.456, 0.406])  # of ImageNet
_DEVIATION: Final = np.array([0.229, 0.224, 0.225])
_DOCS: Final = Path(__file__).parents[2] / "docs"
_SHOWN_BYTES: Final = 1024  # of either end of a file
_NO_BYTE: Final = 256


# --- pictures -------------------------------------------------------------------------------------


@cache
def _pictures(names: tuple[str, ...]) -> list[Image.Image]:
    try:
        return [Image.open(file_in(_IMAGES, f"skimage/data/{n}")).convert("RGB") for n in names]
    except NotThere:
        rng = np.random.default_rng(0)
        return [_made(rng) for _ in range(len(_PHOTOGRAPHS))] if names == _PHOTOGRAPHS else []


def _made(rng: np.random.Generator, size: int = 480) -> Image.Image:
    """Returns a gradient with shapes and blurred spots on it."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    slopes = rng.normal(0, 0.5 / size, (2, 3))
    image = rng.uniform(0.2, 0.8, 3) + x[..., None] * slopes[0] + y[..., None] * slopes[1]
    for _ in range(rng.integers(4, 24)):
        middle, spread = rng.uniform(0, size, 2), rng.uniform(0.02, 0.3, 2) * size
        away = (y - middle[0]) / spread[0], (x - middle[1]) / spread[1]
        if rng.random() < 0.5:
            mask = (np.abs(away[0]) < 1) & (np.abs(away[1]) < 1)
        else:
            mask = np.exp(-(away[0] ** 2) - away[1] ** 2)
        image = image * (1 - mask[..., None]) + rng.uniform(0, 1, 3) * mask[..., None]
    image = image + rng.normal(0, 0.02, image.shape)
    return Image.fromarray((np.clip(image, 0, 1) * 255).astype(np.uint8))


def _crop(rng: np.random.Generator, image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Returns a random part of a picture, scaled to `size`, which is (width, height)."""
    scale = min(image.width / size[0], image.height / size[1]) * rng.uniform(0.4, 1)
    wide, high = int(size[0] * scale), int(size[1] * scale)
    left = int(rng.integers(0, image.width - wide + 1))
    top = int(rng.integers(0, image.height - high + 1))
    return image.crop((left, top, left + wide, top + high)).resize(size, Image.Resampling.BILINEAR)


def _written(rng: np.random.Generator, size: tuple[int, int], lines: int) -> Image.Image:
    """Returns words of the docs, set in lines, dark on light."""
    ground, ink = rng.integers(200, 256), rng.integers(0, 90)
    image = Image.new("RGB", size, (int(ground),) * 3)
    draw, text = ImageDraw.Draw(image), _text()
    high = size[1] / lines
    font = ImageFont.load_default(size=max(8.0, high * rng.uniform(0.55, 0.8)))
    for line in range(lines):
        start = int(rng.integers(0, len(text) - 40))
        words = " ".join(text[start : start + 40])
        draw.text((rng.uniform(2, 10), high * (line + 0.1)), words, (int(ink),) * 3, font=font)
    return image


def _paper(rng: np.random.Generator, size: tuple[int, int], lines: int) -> Image.Image:
    scans = _pictures(_SCANS)
    if scans and rng.random() < 0.5:
        return _crop(rng, scans[rng.integers(len(scans))], size)
    return _written(rng, size, lines)


def _normalized(
    pick: Callable[[np.random.Generator, tuple[int, int]], Image.Image],
    mean: Any,
    deviation: Any,
    rng: np.random.Generator,
    shape: tuple[int, ...],
) -> Array:
    """Returns pictures f32[N, C, H, W], normalized; of one channel, gray."""
    found = np.empty(shape, np.float32)
    for n in range(shape[0]):
        image = pick(rng, (shape[3], shape[2]))
        if shape[1] == 1:
            image = image.convert("L")
        values = np.asarray(image, np.float32).reshape(*shape[2:], shape[1]) / 255
        found[n] = ((values - mean) / deviation).transpose(2, 0, 1)
    return found


def _photograph(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    every = _pictures(_PHOTOGRAPHS)
    image = _crop(rng, every[rng.integers(len(every))], size)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def _page(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    return _paper(rng, size, int(rng.integers(3, 9)))


def _line(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    return _paper(rng, size, 1)


# --- sound ----------------------------------------------------------------------------------------


def speech(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns a voice whose pitch and loudness vary, with noise, at 16 kHz, in a shape."""
    count = int(np.prod(shape))
    seconds = np.arange(count) / _RATE_HZ
    steps = np.clip(rng.normal(0, 1, count), -3, 3)
    pitch = np.cumsum(steps) * 0.02 + rng.uniform(90, 220)
    phase = np.cumsum(pitch) / _RATE_HZ * 2 * np.pi
    voice = sum(np.sin(phase * k) / k * rng.uniform(0.3, 1) for k in range(1, 12))
    knots = max(2, count // 1600)
    loudness = np.interp(seconds, np.linspace(0, seconds[-1], knots), rng.uniform(0, 1, knots) ** 2)
    found = 0.15 * voice * loudness + rng.normal(0, 0.005, count)
    return found.astype(np.float32).reshape(shape)


def _power(rng: np.random.Generator, frames: int, bins: int) -> Array:
    """Returns the power spectrum [frames, bins] of a voice, in windows that overlap by half."""
    window = 2 * (bins - 1)
    wave = speech(rng, ((frames + 1) * window // 2,))
    parts = np.lib.stride_tricks.sliding_window_view(wave, window)[:: window // 2][:frames]
    found: Array = np.abs(np.fft.rfft(parts * np.hanning(window))) ** 2
    return found


def _log_spectrum(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    found = np.log10(np.maximum(_power(rng, *shape[-2:]), 1e-12))
    return np.broadcast_to(found, shape).astype(np.float32)


def _compressed_spectrum(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(_power(rng, *shape[-2:]) ** 0.15, shape).astype(np.float32)


def _mel_spectrum(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns decibels below the loudest, from -1 to 1, of a voice per channel (and its echo)."""
    frames, mels = shape[-2:]
    edges = np.linspace(0, 2595 * np.log10(1 + _RATE_HZ / 2 / 700), mels + 2)
    middle = (10 ** (edges / 2595) - 1) * 700 / (_RATE_HZ / 2) * 512
    bins = np.arange(513)[:, None]
    rising = (bins - middle[:-2]) / np.diff(middle)[:-1]
    falling = (middle[2:] - bins) / np.diff(middle)[1:]
    filters = np.maximum(np.minimum(rising, falling), 0) + 1e-9
    found = np.empty((int(np.prod(shape[:-2], dtype=int)), frames, mels), np.float32)
    for each in found:
        power = np.maximum(_power(rng, frames, 513) @ filters, 1e-10)
        each[:] = (np.maximum(10 * np.log10(power / power.max()), -80) + 40) / 40
    return found.reshape(shape)


# --- text and files -------------------------------------------------------------------------------


@cache
def _text() -> list[str]:
    return re.findall(r"\w+", "\n".join(p.read_text() for p in sorted(_DOCS.glob("*.md"))))


def words(vocabulary: int) -> Kind:
    """Returns a kind: words of the docs in order, i64, each with a number below `vocabulary`."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        text, count = _text(), int(np.prod(shape))
        start = int(rng.integers(0, len(text) - count))
        ids = [zlib.crc32(w.lower().encode()) % vocabulary for w in text[start : start + count]]
        return np.array(ids, np.int64).reshape(shape)

    return draw


@cache
def _files() -> list[Path]:
    folders = (Path(sysconfig.get_path("stdlib")), Path(np.__file__).parent, _DOCS)
    return sorted(p for f in folders for p in f.rglob("*.*") if p.is_file() and p.stat().st_size)


def _file(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns the bytes at both ends of a file, i32."""
    data = _files()[rng.integers(len(_files()))].read_bytes()
    ends = np.full((2, _SHOWN_BYTES), _NO_BYTE, np.int32)
    first, last = data[:_SHOWN_BYTES], data[-_SHOWN_BYTES:]
    ends[0, : len(first)] = list(first)
    ends[1, _SHOWN_BYTES - len(last) :] = list(last)
    return ends.reshape(shape)


KINDS: Final[Mapping[str, Kind]] = {
    "photograph": partial(_normalized, _photograph, _MEAN, _DEVIATION),
    "pixels": partial(_normalized, _photograph, 0.0, 1.0),
    "page": partial(_normalized, _page, _MEAN, _DEVIATION),
    "line": partial(_normalized, _line, 0.5, 0.5),
    "speech": speech,
    "log spectrum": _log_spectrum,
    "mel spectrum": _mel_spectrum,
    "compressed spectrum": _compressed_spectrum,
    "file": _file,
}
"""Ways to draw an input, by name."""
