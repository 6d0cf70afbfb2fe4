"""Which program answers a call: a chain of providers, asked in order (`chain.py`).

A compiled model's chain (`from_module.py`) and that of a loaded one (`from_file.py`) differ only in
their providers. Each provider is a class in a file of its own, and returns a `Served` or the reason
for `Declined`:

| provider | serves | file |
|---|---|---|
| stored build | the sizes of a build from the disk cache, without the compiler | `stored.py` |
| variants | sizes of 0, inputs of any rank, graphs that depend on sizes of 1 | `variants.py` |
| all sizes | the sizes for which one build is valid | `all_sizes.py` |
| its own build | one set of sizes or values, compiled when a call has it | `own_build.py` |
| import in a run | graphs that values or shapes of a call decide | `imported.py` |
| saved builds | the sizes for which a file holds builds | `saved.py` |
| saved build for all sizes | the sizes for which a file's build is valid | `saved.py` |

A model without free sizes has one `Served` (`Chain.only`).
"""
