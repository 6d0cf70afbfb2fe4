"""Parts of a model that run alone, with values captured in a run of the whole.

```python
part = clew.extract("model.onnx", start="encoder.0.query", end="encoder.0.output")
print(part.check())  # runs it, and compares with what was captured
part.save("part.onnx")  # or .txt, or .py: a program that checks and times it
```

`layers.py` finds the layers between others, `graph.py` cuts a module, `tap/capture.py` reads values
from a run, `fused.py` extracts kernels as fused, `file_form.py` cuts the model's file, and
`part.py` and `files.py` have the resulting parts.
"""

from clew.extraction.extracting import extract, extract_ranges
from clew.extraction.loading import load_part, load_partition
from clew.extraction.part import CheckReport, Part
from clew.extraction.partitioning import CompiledPartition, Partition, partition

__all__ = [
    "CheckReport",
    "CompiledPartition",
    "Part",
    "Partition",
    "extract",
    "extract_ranges",
    "load_part",
    "load_partition",
    "partition",
]
