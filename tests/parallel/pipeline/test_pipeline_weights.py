"""Every sample, or token, counts once: however uneven the replicas and their microbatches are."""

from __future__ import annotations

import pytest
import torch

from parallel import Outcome, Settings, UsageError, World, sums
from parallel.pipeline import Pipeline
from tests.parallel.pipeline.side_by_side import Case, Pair, X, Y, chain, pipeline

SLOW = pytest.mark.slow
COUNTS = torch.tensor([3, 0, 1, 2, 0, 0, 5, 4, 1, 0, 2, 7]).double()
LAYOUTS = pytest.mark.parametrize(("ranks", "stages"), [pytest.param(2, 2, marks=SLOW), (4, 2)])


def tokens(outputs, batch):
    """Return a mean over tokens, NaN where there are none, and how many there are."""
    counts = batch[2]
    each = (outputs - batch[1]).square().squeeze(1)
    return Outcome((each * counts).sum() / counts.sum(), counts.sum(), {"square": each})


WEIGHED = Case(loss=tokens, data=(X, Y, COUNTS))


def loss_of(outcomes, world):
    """Return the weighted mean loss over all ranks."""
    total, weight = sums(outcomes)["loss"] if outcomes else (0.0, 0.0)
    row = torch.tensor([float(total), float(weight)], dtype=torch.float64)
    total, weight = world.sum(row).tolist()
    return total / weight


def tokens_count(world, stages):
    for microbatches in (1, 4, 8):
        pair = Pair(world, WEIGHED, pipeline(stages, microbatches=microbatches))
        for batch in (range(7), range(7, 12), [0, 1], [3, 4, 5, 9]):
            assert pair.step(batch).apart() <= 1e-12
            norm = float(pair.said.grad_norm)
            assert norm == pytest.approx(float(pair.expected.grad_norm), rel=1e-12)
            mine, alone = (
                loss_of(pair.said.outcomes, world),
                loss_of(pair.expected.outcomes, World()),
            )
            assert mine == pytest.approx(alone, rel=1e-12)


@LAYOUTS
def test_E6_tokens_weigh_as_in_one_process_where_some_parts_have_none(in_ranks, ranks, stages):
    in_ranks(ranks, tokens_count, stages)


def nothing_counts(world):
    pair = Pair(world, WEIGHED, pipeline(2))
    before = [p.clone() for p in pair.engine.module.parameters() if not p.is_meta]
    said = pair.train([1, 4, 5, 9])  # no token in all of the global batch
    after = [p for p in pair.engine.module.parameters() if not p.is_meta]
    assert float(said.grad_norm) == 0
    assert not said.skipped
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(not p.grad.any() for p in after)


def test_a_global_batch_without_tokens_moves_nothing(in_ranks):
    in_ranks(4, nothing_counts)


def mean_loss(outputs, batch):
    return Outcome((outputs - batch[1]).square().mean())


def sum_loss(outputs, batch):
    each = (outputs - batch[1]).square()
    return Outcome(each.sum())  # by the rule of a mean: each part's sum, weighed by its samples


def weighed_sum(outputs, batch):
    each = (outputs - batch[1]).square()
    return Outcome(each.sum() / len(each), float(len(each)))


def losses_agree(world):
    for loss in (mean_loss, sum_loss, weighed_sum):
        for microbatches in (1, 2, 4):
            pair = Pair(world, Case(loss=loss), pipeline(2, microbatches=microbatches))
            pair.step(range(8), parts=microbatches)
            assert pair.apart() == 0, (loss, microbatches)
            mine, alone = (
                loss_of(pair.said.outcomes, world),
                loss_of(pair.expected.outcomes, World()),
            )
            assert mine == alone
            batches = [(pair.case.batch(torch.arange(a, b)), b - a) for a, b in ((0, 7), (7, 12))]
            mine = loss_of(pair.engine.evaluate(batches), world)
            assert mine == pytest.approx(loss_of(pair.single.evaluate(batches), World()), rel=1e-14)


def test_E6_gradients_and_losses_of_means_and_sums_are_those_of_one_process(in_ranks):
    in_ranks(2, losses_agree)


def some_have_none(world):
    """Replica 1 of 2 has no sample of a batch of one; of 3 replicas two have none."""
    for case in (Case(), WEIGHED):
        pair = Pair(world, case, pipeline(2))
        for batch in (range(7), [6], range(7, 12), [3]):
            assert pair.step(batch).apart() <= 1e-12
            alike = world.gather_objects((float(pair.said.grad_norm), bool(pair.said.skipped)))
            assert alike == alike[:1] * world.size
        pair.engine.check_agreement()
    pair = Pair(world, WEIGHED, pipeline(2))
    assert pair.step([6]).apart() <= 1e-12  # at the very first step, before anybody has told


def test_a_replica_without_samples_adds_nothing(in_ranks):
    in_ranks(4, some_have_none)


class Mixed:
    """A loss that has a weight when it is told so."""

    def __init__(self):
        self.weighs = False

    def __call__(self, outputs, batch):
        said = mean_loss(outputs, batch)
        return Outcome(said.loss, 2.0) if self.weighs else said


def mixes(world, changed_replica):
    loss = Mixed()
    loss.weighs = changed_replica == world.rank // 2
    pair = Pair(world, Case(loss=loss), pipeline(2))
    with pytest.raises(UsageError, match="a weight with some batches and none with others"):
        pair.train(range(8))


def test_weights_from_one_replica_alone_are_refused_on_all_ranks(in_ranks):
    in_ranks(4, mixes, 1)


def mixes_later(world, has_samples_first):
    loss = Mixed()
    pair = Pair(world, Case(loss=loss), pipeline(2))
    pair.train(range(8) if has_samples_first else [0])
    loss.weighs = world.rank == 3
    if world.rank == 3:
        with pytest.raises(UsageError, match="a weight with some batches and none with others"):
            pair.train(range(8))
    else:
        with pytest.raises(RuntimeError, match=r"closed|reset"):
            pair.train(range(8))


@pytest.mark.parametrize("has_samples_first", [pytest.param(True, marks=SLOW), False])
def test_weights_that_come_later_are_refused(in_ranks, has_samples_first):
    in_ranks(4, mixes_later, has_samples_first)


class Exploding(torch.nn.Linear):
    """A layer with a gradient that is infinite when it is told so."""

    explodes = False

    def forward(self, x):
        outputs = super().forward(x)
        if self.explodes:
            outputs.register_hook(lambda gradient: gradient * float("inf"))
        return outputs


def explodes(world, stage, precision):
    def model():
        made = chain()
        made[0], made[6] = Exploding(3, 5), Exploding(4, 1)
        return made

    data = (X.float(), Y.float())
    case = Case(model, data=data, settings=Settings(precision=precision, clip_norm=1.0))
    pair = Pair(world, case, pipeline(2, microbatches=2))
    own = pair.engine.module[0 if world.rank == 0 else 6]
    kept = [p.clone() for p in pair.engine.module.parameters() if not p.is_meta]
    own.explodes = world.rank == stage
    said = pair.train(range(8))
    assert said.skipped
    held = [p for p in pair.engine.module.parameters() if not p.is_meta]
    assert all(torch.equal(a, b) for a, b in zip(held, kept, strict=True))
    own.explodes = False
    assert not pair.train(range(8)).skipped
    scales = world.gather_objects(pair.engine.update.scaler.state_dict())
    assert scales == scales[:1] * world.size
    if precision == "float16":
        assert scales[0]["scale"] == 2.0**15
        assert scales[0]["_growth_tracker"] == 1


def explodes_everywhere(world):
    for stage in (0, 1):
        for precision in ("float16", "float32"):
            explodes(world, stage, precision)


def test_E7_what_overflows_on_one_stage_is_skipped_on_all(in_ranks):
    in_ranks(2, explodes_everywhere)


def scaled(world):
    data = (X.float(), Y.float())
    case = Case(data=data, settings=Settings(precision="float16", clip_norm=0.5))
    pair = Pair(world, case, pipeline(2, microbatches=2))
    for _ in range(3):
        pair.step(range(8), parts=2)
        assert pair.apart() <= 1e-6
        assert float(pair.said.grad_norm) == pytest.approx(float(pair.expected.grad_norm), rel=1e-6)


def test_E7_float16_is_scaled_and_clipped_as_in_one_process(in_ranks):
    in_ranks(2, scaled)


def test_one_stage_alone_is_one_process(alone):
    pair = Pair(alone, WEIGHED, Pipeline(stages=1, split=[], balance="params", microbatches=4))
    for batch in (range(7), range(7, 12)):
        assert pair.step(batch).apart() <= 1e-12
