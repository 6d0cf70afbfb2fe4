"""Where the scripts print: tables to stdout, progress to stderr."""

import sys

from rich.console import Console

console = Console(width=None if sys.stdout.isatty() else 120)
progress = Console(stderr=True)
