"""The measured costs of a token."""

from __future__ import annotations

from clew.explorer.schema import TokenCosts
from clew.explorer.session import Session
from clew.support.errors import InputError


def tokens(session: Session) -> TokenCosts:
    """Returns the costs that the action `tokens` has measured.

    Errors: I230 if there are none.
    """
    found: TokenCosts | None = session.measured.get("tokens")
    if found is None:
        raise InputError(
            "I230",
            "the cost of a token has not been measured in this build",
            hint="use Measure on the page first",
        )
    return found
