"""Groups of sequences that share leading blocks: sound whatever the batch, and worth it."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.shared_prefix import MIN_SHARED_TOKENS, PrefixGroup, find_prefix_groups

BLOCK_SIZE = 16
MIN_BLOCKS = MIN_SHARED_TOKENS // BLOCK_SIZE


def batch_of(tables: Sequence[Sequence[int]], num_new: int = 1) -> PagedBatch:
    """Return sequences whose last block holds the first query."""
    sequences = (PagedSequence(table, (len(table) - 1) * BLOCK_SIZE, num_new) for table in tables)
    return PagedBatch(tuple(sequences), BLOCK_SIZE)


def saved_reads(groups: Sequence[PrefixGroup]) -> int:
    return sum((len(group.members) - 1) * group.num_blocks for group in groups)


def saved_at_level(batch: PagedBatch, num_blocks: int) -> int:
    """Return the block reads saved by grouping all sequences that agree on their first `num_blocks` blocks."""
    long_enough = [s for s in batch.sequences if s.num_context // batch.block_size >= num_blocks]
    sizes = Counter(tuple(sequence.block_ids[:num_blocks]) for sequence in long_enough)
    return sum((size - 1) * num_blocks for size in sizes.values())


@st.composite
def batches(draw: st.DrawFn) -> PagedBatch:
    """Sequences that walk down random trees of blocks and leave them at random depths."""
    block_size = draw(st.sampled_from((4, 16, 32)))
    sequences = []
    private = 1_000_000
    for _ in range(draw(st.integers(1, 12))):
        path: tuple[int, ...] = ()
        table: list[int] = []
        for length in draw(st.lists(st.integers(1, 12), max_size=4)):
            path = (*path, draw(st.integers(0, 1)))
            first = hash(path) % 10_000 * 100
            table += range(first, first + length) if draw(st.booleans()) else range(first, first + 12)
            if table[-1] != first + 11:
                break  # a block in the middle of a run is followed by private ones only
        num_own = draw(st.integers(1, 3))
        table += range(private, private + num_own)
        private += num_own
        num_context = draw(st.integers(0, len(table) * block_size - 1))
        num_new = draw(st.integers(1, len(table) * block_size - num_context))
        sequences.append(PagedSequence(table, num_context, num_new))
    return PagedBatch(tuple(sequences), block_size)


@given(batches())
@settings(max_examples=300, deadline=None)
def test_groups_are_sound_and_save_at_least_what_any_one_level_saves(batch: PagedBatch) -> None:
    groups = find_prefix_groups(batch)
    members = [index for group in groups for index in group.members]
    assert len(members) == len(set(members)), "groups overlap"
    for group in groups:
        assert len(group.members) > 1
        assert group.num_blocks * batch.block_size >= MIN_SHARED_TOKENS
        first = batch.sequences[group.members[0]].block_ids[: group.num_blocks]
        assert len(first) == group.num_blocks
        for index in group.members:
            assert list(batch.sequences[index].block_ids[: group.num_blocks]) == list(first)
            assert group.num_blocks * batch.block_size <= batch.sequences[index].num_context, "reaches the queries"
    worth_merging = -(-MIN_SHARED_TOKENS // batch.block_size)
    for level in range(worth_merging, max(len(sequence.block_ids) for sequence in batch.sequences) + 1):
        assert saved_reads(groups) >= saved_at_level(batch, level)


def test_no_group_without_sharing() -> None:
    assert find_prefix_groups(batch_of([list(range(10)), list(range(20, 30))])) == ()
    assert find_prefix_groups(batch_of([list(range(10))])) == ()


def test_short_sharing_is_not_worth_a_merge() -> None:
    short = list(range(MIN_BLOCKS - 1))
    assert find_prefix_groups(batch_of([[*short, 50, 51], [*short, 60, 61]])) == ()
    enough = list(range(MIN_BLOCKS))
    (group,) = find_prefix_groups(batch_of([[*enough, 50, 51], [*enough, 60, 61]]))
    assert group == PrefixGroup((0, 1), MIN_BLOCKS)


def test_documents_under_one_template() -> None:
    template, first, second = list(range(4)), list(range(10, 20)), list(range(30, 40))
    tables = [[*template, *document, 100 + i] for i, document in enumerate((first, second, first, second, first))]
    groups = find_prefix_groups(batch_of(tables))
    assert set(groups) == {PrefixGroup((0, 2, 4), 14), PrefixGroup((1, 3), 14)}


def test_a_long_template_beats_short_documents() -> None:
    template = list(range(40))
    tables = [[*template, 50 + i // 2, 100 + i] for i in range(6)]
    assert find_prefix_groups(batch_of(tables)) == (PrefixGroup((0, 1, 2, 3, 4, 5), 40),)


def test_sharing_that_is_too_short_does_not_hide_what_is_long_enough() -> None:
    """Nine sequences share two blocks, which is not worth a merge; two of these share ten, which is."""
    tables = [[0, 1, 100 + i, 200 + i] for i in range(7)] + [[0, 1, *range(10, 18), 300 + i] for i in range(2)]
    assert find_prefix_groups(batch_of(tables)) == (PrefixGroup((7, 8), 10),)
