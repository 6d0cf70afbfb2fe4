"""The program of a process that renders a chat template: a request as JSON in, the text out.

A template comes with a model, so it is not trusted. Jinja's sandbox keeps it from Python's objects,
as in transformers; limits on the process keep it from endless loops and from memory. The answer is
JSON, too: `text`, or `error`.
"""

from __future__ import annotations

import datetime
import json
import resource
import sys
from collections.abc import Mapping
from typing import Any


def limit(memory_bytes: int, seconds: int) -> None:
    """Limits the memory and the CPU time of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, seconds)):
        hard = resource.getrlimit(kind)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))


def environment(jinja: Any) -> Any:
    """Returns Jinja's sandbox with what transformers offers to chat templates."""
    found = jinja.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja.ext.loopcontrols, _generation(jinja)],
    )

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def raise_exception(message: Any) -> None:
        raise jinja.exceptions.TemplateError(str(message))

    def strftime_now(form: Any) -> str:
        return datetime.datetime.now().strftime(str(form))

    found.filters["tojson"] = tojson
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = strftime_now
    return found


def _generation(jinja: Any) -> Any:
    """Returns the extension that reads `{% generation %}`, which marks the answers of the model and
    changes nothing.
    """

    class Generation(jinja.ext.Extension):  # type: ignore[misc]
        tags = {"generation"}  # noqa: RUF012 - as the library declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request: `template`, and the `values` of its names."""
    import jinja2  # noqa: PLC0415 - an optional library
    import jinja2.ext  # noqa: PLC0415
    import jinja2.sandbox  # noqa: PLC0415

    try:
        made = environment(jinja2).from_string(request["template"])
        return {"text": made.render(request["values"])}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error) or type(error).__name__}
    except RecursionError:
        return {"error": "it is nested too deeply"}
    except MemoryError:
        return {"error": "it needs too much memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answers one request of standard input. The arguments are bytes of memory, seconds, and bytes
    of the answer. Exits with an error beyond one of them.
    """
    memory_bytes, seconds, most_bytes = map(int, sys.argv[1:4])
    limit(memory_bytes, seconds)
    made = json.dumps(answer(json.loads(sys.stdin.buffer.read()))).encode()
    if len(made) > most_bytes:
        sys.exit(1)
    sys.stdout.buffer.write(made)
