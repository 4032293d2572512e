from itertools import combinations, pairwise
from random import Random

import pytest

from parallel import UsageError
from parallel.partition import bounds, cut, dearest, even, shares

AUTOENCODER = [0.1, 0.1, 0.2, 0.6, 2.3, 9.7, 38.4, 36.4, 8.9, 2.3, 0.7, 0.2, 0.1, 0]  # % of time


def dearest_of(costs, messages, cuts):
    ends = [0, *cuts, len(costs)]
    return max(
        sum(costs[a:b]) + (messages[a - 1] if a else 0) + (messages[b - 1] if b < len(costs) else 0)
        for a, b in pairwise(ends)
    )


def by_hand(costs, stages, messages, fits=lambda stage, a, b: True):
    """Every cut tried: the cheapest dearest stage, least messages, earliest."""
    found = [
        (dearest_of(costs, messages, cuts), sum(messages[at - 1] for at in cuts), cuts)
        for cuts in combinations(range(1, len(costs)), stages - 1)
        if all(fits(s, a, b) for s, (a, b) in enumerate(bounds(len(costs), cuts)))
    ]
    return min(found)[2] if found else None


@pytest.mark.parametrize("layers", range(1, 10))
def test_no_cut_is_better_than_the_chosen(layers):
    random = Random(layers)
    for stages in range(1, layers + 1):
        for top in (3, 1000):  # 3: many equals
            costs = [random.randint(0, top) for _ in range(layers)]
            messages = [random.randint(0, top // 3) for _ in range(layers)]
            none = [0] * layers
            assert cut(costs, stages, messages=messages) == by_hand(costs, stages, messages)
            assert cut(costs, stages) == by_hand(costs, stages, none)


@pytest.mark.parametrize("layers", range(2, 9))
def test_no_cut_that_fits_is_better_than_the_chosen(layers):
    random = Random(layers)
    for stages in range(1, layers + 1):
        costs, messages, saved = ([random.randint(0, 9) for _ in range(layers)] for _ in range(3))

        def fits(stage, a, b, saved=saved, stages=stages):
            return (stages - stage) * sum(saved[a:b]) <= 25

        expected = by_hand(costs, stages, messages, fits)
        if expected is None:
            with pytest.raises(UsageError, match=rf"no cut of {layers} layers into {stages}"):
                cut(costs, stages, messages=messages, fits=fits)
        else:
            assert cut(costs, stages, messages=messages, fits=fits) == expected


def test_sums_of_floats_do_not_decide_between_equals():
    tenths = [0.1] * 10  # 0.1 added ten times is not 1.0
    assert cut(tenths, 5) == (2, 4, 6, 8)
    assert cut([*tenths[:3], 0.1 * 2], 2) == (2,)


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([1, 1, 1, 1], 2, (2,)),
        ([5, 1, 1, 1], 2, (1,)),
        ([1, 1, 1, 5], 2, (3,)),
        ([0, 0, 0], 3, (1, 2)),
        ([7], 1, ()),
        (AUTOENCODER, 2, (7,)),
        (AUTOENCODER, 4, (6, 7, 8)),
    ],
)
def test_the_dearest_stage_is_as_cheap_as_can_be(costs, stages, expected):
    assert cut(costs, stages) == expected


def test_a_dear_message_moves_the_cut():
    assert cut([2, 2, 2, 2], 2, messages=[0, 3, 0, 0]) == (1,)
    assert cut([2, 2, 2, 2], 2, messages=[0, 1, 0, 0]) == (2,)


def test_of_equals_the_least_messages_and_then_the_earliest():
    assert cut([0, 9, 0, 0, 9], 2) == (2,)
    assert cut([0, 9, 0, 0, 9], 2, messages=[0, 3, 3, 0, 0]) == (4,)


def test_a_limit_moves_the_cut():
    assert cut([1, 1, 1, 1], 2, fits=lambda stage, a, b: stage == 1 or b - a <= 1) == (1,)


@pytest.mark.parametrize("limits", [(0, 9), (2, 1)])
def test_where_no_cut_fits_that_is_said(limits):
    with pytest.raises(UsageError, match=r"no cut of 4 layers into 2 stages fits"):
        cut([1, 1, 1, 1], 2, fits=lambda stage, a, b: b - a <= limits[stage])


def test_the_dearest_stage_under_the_best_cut_is_told_of_any_cost():
    assert dearest(4, 2, lambda stage, a, b: (b - a) * (3 - 2 * stage)) == 3


@pytest.mark.parametrize("choose", [lambda n, s: cut([1] * n, s), even])
def test_fewer_layers_than_stages_are_refused_with_both_numbers(choose):
    with pytest.raises(UsageError, match=r"stages=3 .*has 2 layers .*use strategy.stages=2"):
        choose(2, 3)
    with pytest.raises(UsageError, match=r"strategy.stages=0: at least 1 stage is wanted"):
        choose(2, 0)


@pytest.mark.parametrize("layers", range(1, 15))
def test_even_counts_differ_by_one_at_most(layers):
    for stages in range(1, layers + 1):
        counts = [b - a for a, b in bounds(layers, even(layers, stages))]
        assert sum(counts) == layers
        assert len(counts) == stages
        assert max(counts) - min(counts) <= 1


def test_shares_are_parts_of_all_costs():
    assert shares(AUTOENCODER, (6,)) == pytest.approx((0.13, 0.87))  # where the tutorial cuts
    assert shares(AUTOENCODER, (7,)) == pytest.approx((0.514, 0.486))
    assert shares(AUTOENCODER, even(14, 4)) == pytest.approx((0.004, 0.51, 0.476, 0.01))
    assert shares([0, 0], (1,)) == (0.0, 0.0)
