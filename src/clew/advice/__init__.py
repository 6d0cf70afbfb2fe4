"""Finds changes to a model, to its export or to its compilation that make it faster, and measures
the gain of each.

```
module, samples ─ Subject ─▶ rules ─▶ candidates ─ Estimate ─▶ ranked ─ Bench ─▶ Advice
                (profile)  (find)   (what, where,  (work of    (built, compared,
                                     change)        the graph)   raced)
```

- A rule (`rule.py`, one file each in `rules/`) reads the imported graph and the profile of its
  build (`subject.py`), and yields candidates (`candidate.py`): what to change, why, where in the
  author's source, the effort, how results change, and a `Change`. Rules find structure: no rule
  names a model or a layer.
- A `Change` is an edit of the graph (`editing/surgery.py`), of its inputs and outputs
  (`graphs.py`), or options of `clew.compile`. Edits are keyed by nodes of one module, so several
  changes combine, unless they edit the same value.
- Candidates are ranked by a predicted gain: from the work of the changed graph (`estimate.py`, by
  `cost/work.py`), or as a share of the measured time of their layers.
- Each candidate is built, its outputs are compared on the samples, and it is raced against the
  unchanged model (`race.py`): a sequential test decides, and further rounds give the gain and its
  interval. A change whose interval includes 0 is not advice (`trial.py`).
- `advising.py` divides the time among candidates, `report.py` shows the result, `applied.py` writes
  the changed model, and `ceiling.py` finds the time that a call takes at least with the same work.

Only changes that were built and measured become advice; there may be none.
"""

from clew.advice import rules as rules  # registers clew's rules
from clew.advice.advising import advise
from clew.advice.applied import Applied
from clew.advice.candidate import Candidate, Change, Where
from clew.advice.report import Advice, Advised
from clew.advice.rule import AdviceRule, all_rules, register_advice
from clew.advice.subject import Subject
from clew.advice.trial import Effect

__all__ = [
    "Advice",
    "AdviceRule",
    "Advised",
    "Applied",
    "Candidate",
    "Change",
    "Effect",
    "Subject",
    "Where",
    "advise",
    "all_rules",
    "register_advice",
]
