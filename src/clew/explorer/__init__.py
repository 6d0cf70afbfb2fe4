"""The explorer: a web page that follows values from a layer to its instructions.

`schema.py` is the wire format, `routes.py` the table of questions. `views/` answers them, each view
a pure function of a `Session` (a compiled model and its measurements); `actions/` measures.

`server.py` starts the server, `app.py` has its URLs, `security.py` rejects requests that are not
from the page. The server never compiles: `builds.py` keeps a process for each build
(`processes.py`; `worker.py` runs inside it; `protocol.py` connects them), and `jobs.py` holds their
work in progress.

`report.py` writes the page and all answers (`contents.py`) as one file; `notebook.py` shows models,
kernels and stories in notebooks.
"""
