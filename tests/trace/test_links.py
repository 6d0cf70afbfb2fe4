from hypothesis import given
from hypothesis import strategies as st

from clew.trace.lineage import Lineage
from clew.trace.links import Link, LinkKind, StageLinks, links_from

IDS = st.integers(0, 30)


def lineage_of(same: dict[int, int], origins: dict[int, tuple[int, ...]]) -> Lineage:
    lineage = Lineage()
    lineage.same.update(same)
    lineage.origins.update(origins)
    return lineage


def found(before: set[int], after: set[int], lineage: Lineage) -> set[tuple[int, int, str]]:
    return {(x.old, x.new, x.kind.value) for x in links_from(before, after, lineage)}


def test_same_chains_within_a_pass() -> None:
    lineage = lineage_of({1: 10, 10: 20}, {10: (1,), 20: (10,)})
    assert found({1}, {20}, lineage) == {(1, 20, "same")}


def test_derived_through_nodes_between() -> None:
    lineage = lineage_of({}, {10: (1, 2), 20: (10, 3)})
    assert found({1, 2, 3}, {20}, lineage) == {(n, 20, "derived") for n in (1, 2, 3)}


def test_derived_from_what_an_old_node_had_become() -> None:
    """1 is folded into 10, for 2; 20 is folded from 10 and built for 2."""
    lineage = lineage_of({2: 10, 3: 20}, {10: (2, 1), 20: (3, 2)})
    links = found({1, 2, 3}, {20}, lineage)
    assert links == {(3, 20, "same"), (2, 20, "derived"), (1, 20, "derived")}


def test_rings_end() -> None:
    lineage = lineage_of({1: 10, 10: 1}, {10: (11,), 11: (10, 1)})
    assert (1, 10, "same") in found({1}, {10}, lineage)


def test_nodes_in_both_stages_are_kept() -> None:
    links = StageLinks({1, 2}, {2, 3}, [Link(1, 3, LinkKind.SAME)])
    assert links.forward(2) == links.backward(2) == [Link(2, 2, LinkKind.KEPT)]
    assert links.forward(1) == links.backward(3) == [Link(1, 3, LinkKind.SAME)]
    assert links.forward(9) == []


@given(
    st.sets(IDS), st.sets(IDS), st.dictionaries(IDS, IDS),
    st.dictionaries(IDS, st.lists(IDS, max_size=3).map(tuple)),
)  # fmt: skip
def test_links_join_the_two_stages_only(
    before: set[int], after: set[int], same: dict[int, int], origins: dict[int, tuple[int, ...]]
) -> None:
    links = list(links_from(before, after, lineage_of(same, origins)))
    assert all(x.old in before and x.new in after for x in links)
    assert len({(x.old, x.new) for x in links}) == len(links)
    both = StageLinks(before, after, links)
    for link in links:
        assert link in both.forward(link.old)
        assert link in both.backward(link.new)


def test_long_chains_do_not_recurse() -> None:
    count = 20_000
    origins = {n: (n - 1,) for n in range(1, count)}
    same = {n - 1: n for n in range(1, count)}
    assert found({0}, {count - 1}, lineage_of(same, origins)) == {(0, count - 1, "same")}
    assert found({0}, {count - 1}, lineage_of({}, origins)) == {(0, count - 1, "derived")}
