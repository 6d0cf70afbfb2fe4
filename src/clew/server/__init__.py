"""Serves a language model over HTTP, as OpenAI's API does."""

from clew.server.serving import Asked, Serving, serve

__all__ = ["Asked", "Serving", "serve"]
