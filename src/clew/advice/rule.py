"""Advice rules, and the registry that holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.advice.candidate import Candidate
    from clew.advice.subject import Subject

R = TypeVar("R", bound="AdviceRule")


class AdviceRule(ABC):
    """Finds changes of one kind. A rule reads the graph and the profile; it measures nothing, and
    names no model or layer.
    """

    name: ClassVar[str]
    """The rule's name in reports and options, such as `late-selection`."""
    title: ClassVar[str]
    """What the rule looks for, in one sentence."""

    @abstractmethod
    def find(self, subject: Subject) -> Iterable[Candidate]:
        """Yields candidates in the model. An error of one of clew's rules is a bug; an error of a
        user's rule is reported, and the other rules continue.
        """


_rules: Final[dict[str, AdviceRule]] = {}


def register_advice(rule: type[R]) -> type[R]:
    """Registers a rule, a subclass of `clew.advice.AdviceRule`, and returns it, so it can decorate
    the class. A rule of the same name is replaced.

    Errors: I510 for a class that is not a rule, or has no name or title.
    """
    fits = isinstance(rule, type) and issubclass(rule, AdviceRule)
    if not fits or not getattr(rule, "name", "") or not getattr(rule, "title", ""):
        raise InputError(
            "I510",
            f"{getattr(rule, '__name__', rule)!r} is no advice rule",
            hint="derive it from clew.advice.AdviceRule, and set its name and its title",
        )
    _rules[rule.name] = rule()
    return rule


def all_rules() -> list[AdviceRule]:
    """Returns the registered rules in order."""
    return list(_rules.values())
