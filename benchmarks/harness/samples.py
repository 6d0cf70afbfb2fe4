"""Inputs that look like those of users: pictures, written lines, speech."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_LARGEST = 2.6  # of a normalized picture
_RATE_HZ = 16000


def picture(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns normalized pictures [N, C, H, W]: gradients with shapes and blurred spots on them."""
    count, channels, height, width = shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    found = np.empty(shape, np.float32)
    for n in range(count):
        slopes = rng.normal(0, 2 / max(height, width), (channels, 2, 1, 1))
        image = rng.uniform(-1, 1, (channels, 1, 1)) + slopes[:, 0] * x + slopes[:, 1] * y
        for _ in range(rng.integers(4, 24)):
            middle = rng.uniform(0, (height, width))
            size = rng.uniform(0.02, 0.3, 2) * (height, width)
            away = (y - middle[0]) / size[0], (x - middle[1]) / size[1]
            if rng.random() < 0.5:
                mask = (np.abs(away[0]) < 1) & (np.abs(away[1]) < 1)
            else:
                mask = np.exp(-(away[0] ** 2) - away[1] ** 2)
            color = rng.normal(0, 1.2, (channels, 1, 1))
            image = image * (1 - mask) + color * mask
        found[n] = image + rng.normal(0, 0.05, image.shape)
    return np.clip(found, -_LARGEST, _LARGEST)


def writing(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns pictures [N, C, H, W] of lines of dark strokes on light ground, in [-1, 1]."""
    count, _, height, width = shape
    found = np.empty(shape, np.float32)
    for n in range(count):
        image = np.full((height, width), rng.uniform(0.5, 1), np.float32)
        lines = max(1, height // 40)
        for line in range(lines):
            top, bottom = (int((line + part) * height / lines) for part in (0.15, 0.85))
            tall, ink, left = bottom - top, rng.uniform(-1, -0.3), int(rng.integers(2, 12))
            thick = max(1, tall // 10)
            while left < width - 6:
                wide = int(rng.integers(max(3, tall // 4), max(5, tall // 2 + 3)))
                for _ in range(rng.integers(1, 4)):
                    if rng.random() < 0.5:
                        at = left + int(rng.integers(0, wide))
                        image[top:bottom, at : at + thick] = ink
                    else:
                        at = int(rng.integers(top, bottom))
                        image[at : at + thick, left : left + wide] = ink
                left += wide + int(rng.integers(2, 6))
        found[n] = image + rng.normal(0, 0.02, shape[1:])
    return np.clip(found, -1, 1)


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
