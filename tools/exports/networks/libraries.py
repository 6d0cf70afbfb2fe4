"""The optional libraries, and small modules around their models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from exports.torchvision_ops import torchvision


def transformers() -> Any:
    """Returns transformers, quiet."""
    torchvision()  # transformers imports it where it is installed, and fails where that does
    import transformers as library  # noqa: PLC0415 - optional

    library.logging.set_verbosity_error()
    return library


def timm() -> Any:
    """Returns timm."""
    torchvision()  # which timm imports
    import timm as library  # noqa: PLC0415 - optional

    return library


def named(model: str, keep: tuple[str, ...] = (), **config: Any) -> Callable[[], Any]:
    """Returns a function that makes a model of transformers from its class's name and
    configuration.

    Values of the configuration that are functions are called first. `keep` names the outputs that
    count; the default is all outputs that are tensors.
    """
    return partial(_named, model, keep, **config)


def _named(model: str, keep: tuple[str, ...], **config: Any) -> Any:
    kind = getattr(transformers(), model)
    values = {key: value() if callable(value) else value for key, value in config.items()}
    made = kind(kind.config_class(**values))
    return outputs(made, keep) if keep else made


def outputs(model: Any, names: tuple[str, ...]) -> Any:
    """Returns a module with those of a model's named outputs that there are."""
    return mapped(model, lambda result: tuple(result[n] for n in names if n in result))


def mapped(model: Any, change: Callable[[Any], Any], **always: Any) -> Any:
    """Returns a module that applies `change` to a model's results; `always` is passed to the
    model.
    """
    from torch import nn  # noqa: PLC0415 - optional

    class Mapped(nn.Module):  # type: ignore[misc]  # torch is not followed by the type check
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *arguments: Any, **named: Any) -> Any:
            return change(self.inner(*arguments, **named, **always))

    # torch.export reads the names of arguments from it.
    Mapped.forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    return Mapped()
