"""Measurements of a build, or the error that says that there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.explorer.session import Session
from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.profile.report import Profile


def profile_of(session: Session) -> Profile:
    """Returns the build's profile.

    Errors: I230 if it was not profiled.
    """
    found: Profile | None = session.measured.get("profile")
    if found is None:
        raise InputError(
            "I230", "this build has not been profiled", hint="use Measure on the page first"
        )
    return found


def errors_of(session: Session) -> dict[str, float | None]:
    """Returns the errors of the build's layers by name, None for values that are not in memory.

    Errors: I231 if values were not compared.
    """
    found: dict[str, float | None] | None = session.measured.get("errors")
    if found is None:
        raise InputError(
            "I231",
            "values of this build have not been compared with the reference",
            hint="use Measure errors on the page first",
        )
    return found
