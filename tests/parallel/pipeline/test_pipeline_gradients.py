"""A pipeline's gradients are those of one process on the whole global batch, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from parallel.pipeline import ModelParallel
from tests.parallel.pipeline.side_by_side import CUTS, Case, Pair, X, Y, chain, pipeline

SLOW = pytest.mark.slow
FIRST, LAST = range(7), range(7, 12)  # global batches of 7 and 5 samples


def gradients_agree(world, stages):
    for schedule, ahead in (("1f1b", 0), ("1f1b", 1), ("gpipe", 0)):
        for microbatches in (1, 2, 4, 8):
            course = {"schedule": schedule, "microbatches": microbatches, "ahead": ahead}
            pair = Pair(world, Case(), pipeline(stages, **course))
            for batch in (FIRST, LAST):
                assert pair.step(batch).apart() <= 1e-12, (course, len(batch))
                norm, expected = float(pair.said.grad_norm), float(pair.expected.grad_norm)
                assert norm == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("ranks", "stages"),
    [
        (2, 2),
        pytest.param(3, 3, marks=SLOW),
        pytest.param(4, 4, marks=SLOW),
        pytest.param(4, 2, marks=SLOW),
    ],
    ids=["2", "3", "4", "2x2"],
)
def test_E1_E2_gradients_and_norm_are_those_of_one_process(in_ranks, ranks, stages):
    in_ranks(ranks, gradients_agree, stages)


def naive_agrees(world):
    for accumulate in (1, 3):
        pair = Pair(world, Case(), ModelParallel(stages=2, split=CUTS[2], balance="params"))
        for batch in (FIRST, LAST):
            assert pair.step(batch, accumulate).apart() <= 1e-12


def test_the_naive_split_gives_them_too(in_ranks):
    in_ranks(2, naive_agrees)


def torchs_agrees(world):
    """Ask torch's own schedule, told the shapes, of eight samples in four microbatches."""
    pair = Pair(world, Case(), pipeline(2, microbatches=4))
    pair.train(range(8))
    torch.manual_seed(0)
    own = chain().double()[slice(3, None) if world.rank else slice(3)]
    between = torch.zeros(2, 5).double().requires_grad_()
    stage = PipelineStage(
        own,
        world.rank,
        2,
        world.device,
        input_args=between if world.rank else X[:2],
        output_args=torch.zeros(2, 1).double().requires_grad_() if world.rank else between,
    )
    schedule = Schedule1F1B(stage, 4, lambda y, t: (y - t).square().mean() / 4, scale_grads=False)
    if world.rank:
        schedule.step(target=Y[:8])
    else:
        schedule.step(X[:8])
    held = [p for p in pair.engine.module.parameters() if not p.is_meta]
    for mine, theirs in zip(held, own.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_torchs_own_schedule_gives_the_same_bits(in_ranks):
    in_ranks(2, torchs_agrees)
