"""Edits graphs manually: selects layers, and inserts operators before, after, around or in place of
them.

```python
edit = clew.edit(model)
convs = edit.select("stage4.*", op="nn.conv2d")
edit.insert_after(convs, lambda y: clew.get_op("clip")(y, low=-6.0, high=6.0))
compiled = clew.compile(edit.module)
```
"""

from clew.editing.editor import Editor, edit
from clew.editing.selection import Part, Selection

__all__ = ["Editor", "Part", "Selection", "edit"]
