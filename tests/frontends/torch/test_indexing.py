"""Reading and writing at places, against eager PyTorch: static, and with a free size."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from .torch_calls import agrees

AUTO = Dim.AUTO
BATCH = Dim("batch", min=2, max=64)


def test_masks_and_integers_mixed():
    def index(x, rows, columns, mask):
        return (
            x[rows, :, columns],
            x[:, rows[:2], columns[:2]],
            x[rows.unsqueeze(1), columns],
            x[..., -1],
            x[mask.any(1).any(1)],
            x[mask],
            x[:, mask[0]],
        )

    x = torch.randn(4, 5, 6)
    rows, columns = torch.tensor([3, 0, -1]), torch.tensor([1, 4, -2])
    agrees(index, x, rows, columns, x > 0, more=[(-x, columns.abs() % 4, rows, x < 9)])


def test_writing_at_places():
    def put(x, rows, columns, values):
        one = x.index_put((rows, columns), values, accumulate=True)
        two = x.index_put((rows,), values[:, None].expand(3, 5))
        three = torch.index_put(x, (x > 0,), torch.tensor(2.0))
        four = x.clone()
        four[:, columns] = values
        four[1:3, ::2] += 1
        return one, two, three, four

    x = torch.randn(4, 5)
    places = torch.tensor([1, 3, 1]), torch.tensor([0, 2, 0])
    agrees(put, x, *places, torch.randn(3), more=[(x * 2, *places[::-1], torch.randn(3))])


def test_masks_that_select_nothing():
    def put(x, mask):
        one, two = x.clone(), x.clone()
        one[mask] = one[mask] + 1
        two[two > 0] = 0
        return one, two

    free = ({0: AUTO, 1: AUTO}, {0: AUTO})
    shapes = [(5, 4), (0, 4)]
    more = [(-torch.rand(shape), torch.zeros(shape[0], dtype=torch.bool)) for shape in shapes]
    agrees(put, torch.randn(5, 4), torch.arange(5) > 2, dynamic=free, more=more)
    agrees(put, *more[1])


def test_free_sizes():
    def index(x, rows):
        y = x.clone()
        y[:, 1] = 7
        return x[:, rows], x[:, -2:], x[:, 1:5:2], y, torch.gather(x, 1, rows.expand(x.shape[0], 3))

    rows = torch.tensor([2, 0, 5])
    more = [(torch.randn(n, 6), rows.flip(0)) for n in (2, 9)]
    agrees(index, torch.randn(4, 6), rows, dynamic=({0: BATCH}, None), more=more)


def test_places_in_memory():
    def strided(x):
        return (
            x.as_strided((3, 2), (2, 5), 1),
            x.t().as_strided((2, 2), (1, 3)),
            torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (4, 1), 2),
            torch.diagonal_scatter(x, torch.ones(3), -1),
            x.unfold(1, 2, 2),
        )

    agrees(strided, torch.randn(4, 5), more=[(torch.randn(4, 5),)])


def test_scatter_reductions():
    def scatter(x, places, values):
        return tuple(
            x.scatter_reduce(1, places, values, how, include_self=own)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
        )

    places = torch.tensor([[0, 3, 0], [2, 2, 1]])
    agrees(scatter, torch.randn(2, 4), places, torch.randn(2, 3))
    agrees(scatter, torch.randint(-9, 9, (2, 4)), places, torch.randint(-9, 9, (2, 3)))


def test_order_of_elements():
    def order(x, bounds, mask):
        return (
            *x.cummax(1),
            *x.cummin(0),
            *x.kthvalue(3, 1),
            *x.median(1),
            *x.nanmedian(0),
            *x.sort(1, descending=True),
            torch.searchsorted(bounds, x, right=True),
            torch.bucketize(x, bounds),
            torch.histc(x.nan_to_num(), 4, -1, 1),
            torch.masked_select(x, mask),
            *torch.unique_consecutive(mask.int(), return_inverse=True, return_counts=True),
            *torch.unique((x * 2).nan_to_num().int(), return_inverse=True, return_counts=True),
        )

    x = torch.randn(3, 5)
    x[1, 2] = torch.nan
    bounds = torch.tensor([-1.0, 0.0, 0.5])
    agrees(order, x, bounds, x > 0, more=[(torch.randn(3, 5), bounds, x < 9)])


def test_order_of_a_free_axis():
    def order(x, w):
        n = x.shape[1]
        return (
            *x.sort(1, descending=True),
            *(x.argsort(0), w.bool().sort(1)[0]),
            *x.topk((n + 1) // 2, 1),
            *(*x.kthvalue((n + 1) // 2, 1), *x.median(1), *x.nanmedian(0), w.median(1)[0]),
            *(w.mode(1)[0], torch.bincount(w.flatten(), minlength=n)),
        )

    def drawn(rows, columns):
        return torch.randn(rows, columns), torch.randint(0, 5, (rows, columns))

    x, w = drawn(4, 7)
    x[1, 2] = torch.nan
    free = {0: AUTO, 1: AUTO}
    agrees(order, x, w, dynamic=[free, free], more=[drawn(3, 9), drawn(1, 1), drawn(6, 40)])


def test_the_largest_of_free_axes():
    more = [(torch.randn(3, n),) for n in (4, 7, 16, 63, 64, 65, 1000, 9000)]
    more[2][0][1, 3:6] = torch.nan
    ties = (torch.full((3, 300), -1.0),)
    agrees(lambda x: x.topk(4, 1)[0], torch.randn(3, 40), dynamic=[{1: AUTO}], more=[*more, ties])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_padding(mode):
    def bags(indices, offsets, weight):
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=3)

    weight = torch.randn(8, 6)
    more = [(torch.full((12,), 3), torch.tensor([0, 1, 3, 12]), weight)]
    args = torch.randint(0, 8, (12,)), torch.tensor([0, 2, 2, 7]), weight
    agrees(bags, *args, dynamic=[{0: AUTO}, {0: AUTO}, {}], more=more)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_size(mode, padding):
    layer = torch.nn.EmbeddingBag(8, 6, mode=mode, padding_idx=padding).eval()
    more = [(torch.full((3, 5), 3),), (torch.randint(0, 8, (9, 5)),)]
    agrees(lambda x: layer(x), torch.randint(0, 8, (4, 5)), dynamic=[{0: AUTO}], more=more)


def test_slices_from_behind_by_free_sizes():
    def slices(x, y):
        n = y.shape[1]
        filled = x.clone()
        filled[:, -n:] = y
        return x[:, -n:], x[:, :-n], x[:, -x.shape[1] :], filled

    def drawn(*sizes):
        return tuple(torch.randn(3, size) for size in sizes)

    free = {1: AUTO}
    agrees(slices, *drawn(9, 4), dynamic=(free, free), more=[drawn(12, 7), drawn(6, 2)])


def test_slices_whose_size_torch_does_not_know():
    def slices(x, y, n):
        k = n.item()
        torch._check(k >= 0)
        return x[:, -k:], x[:, y.shape[1] - x.shape[1] :]

    def drawn(long, short, count):
        return torch.randn(3, long), torch.randn(3, short), torch.tensor(count)

    free = {1: AUTO}
    more = [drawn(12, 7, 5), drawn(6, 2, 0)]
    agrees(slices, *drawn(9, 4, 3), dynamic=(free, free, {}), more=more)


def test_checks_of_all_elements():
    def checked(x):
        torch._check_tensor_all(x > -9)
        return x * 2

    agrees(checked, torch.rand(3, 4))


def test_ranges_and_bags_of_free_steps():
    def ranges(x, weight):
        rows, columns = x.shape
        numbers = torch.arange(0, rows * columns, columns), torch.arange(rows, 50, columns)
        return (*numbers, F.embedding_bag(x, weight, mode="mean"))

    weight = torch.randn(9, 6)
    more = [(torch.randint(0, 8, (5, 7)), weight)]
    free = {0: AUTO, 1: AUTO}
    agrees(ranges, torch.randint(0, 8, (3, 4)), weight, dynamic=[free, {}], more=more)


def test_histograms():
    x = torch.tensor([0.1, 2.0, -1.0, 0.5, 0.5, 3.0, float("nan")])
    weight = torch.arange(7.0)

    def counts(x, weight):
        return (
            *torch.histogram(x, torch.tensor([-1.0, 0.0, 0.5, 2.0]), weight=weight),
            *torch.histogram(x, 4, range=(-1, 3), weight=weight, density=True),
            *torch.histogram(x.nan_to_num(), 3),
            *torch.histogram(x[:1], 2),
        )

    agrees(counts, x, weight)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
@pytest.mark.parametrize("initial", [None, 1.5])
def test_reduced_segments(reduce, initial):
    def reduced(x, lengths, offsets):
        return (
            torch.segment_reduce(x, reduce, lengths=lengths, initial=initial),
            torch.segment_reduce(x, reduce, offsets=offsets, initial=initial),
            torch.segment_reduce(
                x, reduce, lengths=lengths.expand(5, 4) - 0, axis=1, initial=initial, unsafe=True
            ),
        )

    agrees(reduced, torch.randn(5, 5, 2), torch.tensor([2, 0, 1, 2]), torch.tensor([0, 3, 3, 5]))
