"""The explorer: a page in which every value can be followed from a layer to its instructions.

`schema.py` is the wire format, `routes.py` what can be asked; `views/` answer, each a pure function
of a `Session` (a compiled model and what was measured of it), `actions/` measure.

`server.py` starts the server, `app.py` has its URLs, `security.py` refuses what is not of the page.
It never compiles: `builds.py` keeps for each build a process (`processes.py`, whose other end is
`worker.py`; `protocol.py` between them), and `jobs.py` what is under way in them.

`report.py` writes the page and all answers (`contents.py`) as one file; `notebook.py` shows models,
kernels and stories in notebooks.
"""
