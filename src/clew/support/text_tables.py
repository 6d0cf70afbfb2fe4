"""Layout of the memory that native code on texts reads: tables, automata, rules of splits, tries.

**Tables.** A table of texts has a header (`TABLE_*`) and then slots (`SLOT_*`), a power of two, of
which at most half are used: hash (0 in a free slot), first byte, form and place of a key. The form
is the number of bytes times 8, plus that of one character. A key occupies the first free slot from
its hash on. The hash depends on a secret, so that nobody can choose keys that all meet in one slot.

**Automata.** A header (`AUTOMATON_*`), and then a row of 256 states (`i16`) for each state: the
next one by the next byte in UTF-8. State 0 accepts nothing. States from a number on accept.

**Splits.** A rule has a header (`RULE_*`) and then a byte for each character up to the last one
that separates pieces: 1 if it does.

**n-grams.** A trie as a table: a slot (4 words) has a node, a token, the node that the token leads
to, plus 1, and the number of the n-gram that ends with the token, plus 1. Either is 0 if there is
none, and both are in a free slot.
"""

from __future__ import annotations

from typing import Final

HEADER_WORDS: Final = 8
"""Of each table and automaton, in words of 8 bytes."""

TABLE_TYPE, TABLE_MASK, TABLE_SECRET, TABLE_UNKNOWN = range(4)
"""The address of `str`, the number of slots less 1, the secret, the place of unknown texts."""

SLOT_WORDS: Final = 4

AUTOMATON_TYPE, AUTOMATON_START, AUTOMATON_ACCEPTS = range(3)
"""The address of `str`, the first state, the number of the first state that accepts."""

RULE_TYPE, RULE_SIZE, RULE_RUNS, RULE_MOST, RULE_EMPTY, RULE_SINGLE = range(6)
"""The address of `str`, the number of characters with a byte, whether a run of separators is one
and those at the ends separate nothing, the most splits, the address of the empty text, and the only
separator if it is below 256, else -1.
"""

GRAMS_MASK, GRAMS_SECRET, GRAMS_NODES, GRAMS_COUNT, GRAMS_WEIGHTS, GRAMS_COLUMNS = range(6)
"""The number of slots less 1, the secret, inner nodes without the root, distinct n-grams, and the
address and number of weights (`f32`).
"""

GRAMS_PLAIN, GRAMS_WHETHER, GRAMS_TIMES = range(3)
"""What becomes of counts: they stay, a weight is where they are not 0, they are times weights."""

STEP_WORDS: Final = 4
STEP_GRAM: Final = 3
"""The word of a slot that has the number of the n-gram."""
