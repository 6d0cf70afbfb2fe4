"""Language models as `transformers` saves them: a folder with `config.json` and safetensors files.

The folder holds weights, not a graph. `architectures.py` reads the configuration of each kind of
model into a `Decoder`, and `decoder.py` builds the graph of any `Decoder`.
"""

from __future__ import annotations

from clew.frontends.checkpoint.loader import load

__all__ = ["load"]
