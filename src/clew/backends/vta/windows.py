"""The sizes of results of square windows that slide over an image."""

from __future__ import annotations


class Windows:
    """The part that convolutions and pools share: an image, and windows with zeros around it."""

    height: int
    width: int
    kernel: int
    stride: int
    padding: int

    @property
    def out_height(self) -> int:
        """The rows of the result."""
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        """The columns of the result."""
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1
