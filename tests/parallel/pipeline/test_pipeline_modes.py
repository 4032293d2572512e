"""Layers that train and judge differently: normalisation, dropout, recomputation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from parallel import Settings, UsageError
from tests.parallel.pipeline.side_by_side import Case, Pair, X, Y, pipeline

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


def normalised():
    return nn.Sequential(
        nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6),
        nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None),
        nn.Linear(4, 1),
    )  # fmt: skip


def dropping(p=0.5):
    return nn.Sequential(
        nn.Linear(3, 6), nn.Dropout(p), nn.Linear(6, 6), nn.Dropout(p), nn.Linear(6, 1)
    )


CUTS = {2: [4], 3: [3, 6]}


def normalises(world, stages):
    for every in (0, 1, 2, 3):
        for schedule in ("1f1b", "gpipe"):
            strategy = pipeline(
                stages, CUTS[stages], schedule=schedule, microbatches=3, checkpoint_every=every
            )
            pair = Pair(world, Case(normalised), strategy)
            for batch in (range(12), range(7), range(12)):
                pair.step(batch, parts=3)
                assert pair.has_equal("named_buffers"), (every, schedule)
                assert pair.apart() == 0, (every, schedule)
            assert pair.has_equal("named_parameters"), (every, schedule)


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_E8_normalisation_is_that_of_one_process_over_the_same_microbatches(in_ranks, stages):
    in_ranks(stages, normalises, stages)


def plain_is_the_same(world):
    """Without normalisation, the number of microbatches leaves no trace but rounding."""
    pairs = [Pair(world, Case(), pipeline(2, microbatches=m)) for m in (2, 4)]
    for pair in pairs:
        for _ in range(3):
            pair.step(range(12))
        assert pair.parameters_apart() <= 1e-13


def test_E8_without_normalisation_the_number_of_microbatches_changes_nothing(in_ranks):
    in_ranks(2, plain_is_the_same)


def normalised_twice():
    once = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(3, 4), once, nn.Linear(4, 4), once, nn.Linear(4, 1))


def shares_statistics(world):
    with pytest.raises(UsageError, match="layer '1', a BatchNorm1d, stands in several stages"):
        Pair(world, Case(normalised_twice), pipeline(2, [2]))
    pair = Pair(world, Case(normalised_twice), pipeline(2, [1]))
    assert pair.step(range(8), parts=4).apart() == 0
    assert pair.has_equal("named_buffers")


def test_running_statistics_belong_to_one_stage(in_ranks):
    in_ranks(2, shares_statistics)


def replicas_agree_on_buffers(world):
    pair = Pair(world, Case(normalised), pipeline(2, CUTS[2], microbatches=2))
    pair.train(range(12))
    held = {name: b for name, b in pair.engine.module.named_buffers() if not b.is_meta}
    before = world.gather_objects({name: b.tolist() for name, b in held.items()})
    assert before[0] != before[2]  # each replica has seen its own samples
    pair.engine.check_agreement(buffers=True)
    after = world.gather_objects({name: b.tolist() for name, b in held.items()})
    assert after == [before[0], before[1]] * 2


def test_buffers_become_those_of_the_first_replica(in_ranks):
    in_ranks(4, replicas_agree_on_buffers)


class Watched(nn.Dropout):
    """A layer that notes in which mode it is called, and whether a gradient may follow."""

    def __init__(self, p=0.5):
        super().__init__(p)
        self.seen = []

    def forward(self, x):
        self.seen.append((self.training, torch.is_grad_enabled(), x.requires_grad))
        return super().forward(x)


def judges(world):
    case = Case(lambda: nn.Sequential(nn.Linear(3, 6), Watched(), nn.Linear(6, 6), Watched(),
                                      nn.Linear(6, 1)))  # fmt: skip
    pair = Pair(world, case, pipeline(2, [2]))
    pair.train(range(7))
    module = pair.engine.module
    module[0].eval()  # what is in evaluation mode stays in it
    pair.single.module.load_state_dict(_whole(world, module))
    gradients = [p.grad.clone() for p in module.parameters() if not p.is_meta]
    own = module[1 if world.rank == 0 else 3]
    own.seen.clear()
    batches = [range(5), range(5, 12), range(1)]  # other sizes, one of them a single sample
    said = pair.engine.evaluate((case.batch(torch.tensor(list(b))), len(b)) for b in batches)
    expected = pair.single.evaluate((case.batch(torch.tensor(list(b))), len(b)) for b in batches)
    if pair.is_last:
        for mine, theirs in zip(said, expected, strict=True):
            assert torch.equal(mine.loss, theirs.loss)
            assert torch.equal(mine.metrics["square"], theirs.metrics["square"])
            assert mine.weight == theirs.weight
    else:
        assert said == []
    assert own.seen == [(False, False, False)] * 3
    assert not module[0].training
    assert own.training
    kept = [p.grad for p in module.parameters() if not p.is_meta]
    assert all(torch.equal(a, b) for a, b in zip(kept, gradients, strict=True))
    pair.train(range(7))
    assert own.seen[3:] == [(True, True, True)] * 4


def _whole(world, module):
    """Return all stages' tensors."""
    held = {name: t for name, t in module.state_dict().items() if not t.is_meta}
    return {name: t for each in world.gather_objects(held) for name, t in each.items()}


def test_E14_evaluation_has_no_dropout_and_no_gradient_and_leaves_no_trace(in_ranks):
    in_ranks(2, judges)


def drops(world):
    def losses(every):
        pair = Pair(world, Case(dropping), pipeline(2, [2], checkpoint_every=every))
        torch.manual_seed(7 + world.rank)
        steps = [pair.train(range(7)) for _ in range(3)]
        return [float(each.loss) for said in steps for each in said.outcomes]

    first = losses(0)
    assert first == losses(0) == losses(1)
    assert len(set(first)) == len(first) == 3 * 4 * world.rank


def test_dropout_draws_the_same_from_the_same_seed_recomputed_too(in_ranks):
    in_ranks(2, drops)


def recomputes(world):
    """In-place layers anywhere, and a cut anywhere: the same bits with recomputation."""

    def model():
        return nn.Sequential(
            nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.ELU(inplace=True),
            nn.Dropout(0.0, inplace=True), nn.Linear(5, 1),
        )  # fmt: skip

    for cut in range(1, 6):
        for every in (0, 1, 2, 5):
            strategy = pipeline(2, [cut], checkpoint_every=every)
            pair = Pair(world, Case(model), strategy)
            for batch in (range(7), range(7, 12)):
                assert pair.step(batch, parts=4).apart() == 0, (cut, every)


def test_layers_that_work_in_place_give_the_same_bits_at_any_cut(in_ranks):
    in_ranks(2, recomputes)


def normed():
    """Spectral norm: a forward writes to the vectors that it computes with, and batch norm."""
    spectral = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(
        spectral(nn.Linear(3, 5)), nn.BatchNorm1d(5), nn.Tanh(), spectral(nn.Linear(5, 1))
    )


def recomputes_with_buffers(world):
    for every in (0, 1, 2):
        pair = Pair(world, Case(normed), pipeline(2, [2], checkpoint_every=every))
        for _ in range(3):
            assert pair.step(range(8), parts=4).apart() <= 1e-15, every
        held = {name: t for name, t in pair.engine.module.named_buffers() if not t.is_meta}
        alone = dict(pair.single.module.named_buffers())
        assert held
        assert all(torch.allclose(t, alone[name], 1e-12, 1e-15) for name, t in held.items())


def test_what_is_computed_again_finds_the_buffers_of_its_forward(in_ranks):
    in_ranks(2, recomputes_with_buffers)


class Adding(nn.Module):
    """Works in place on what it is given, and does not say so."""

    def forward(self, x):
        return x.add_(1)


def changes_its_input(world):
    case = Case(lambda: nn.Sequential(nn.Linear(3, 2), Adding(), nn.Linear(2, 1)))
    pair = Pair(world, case, pipeline(2, [1]))
    assert pair.step(range(7), parts=4).apart() == 0
    refused = Pair(world, case, pipeline(2, [1], checkpoint_every=1))
    words = "an? Adding changes what it is given in place" if world.rank else r"closed|reset"
    with pytest.raises(Exception, match=words):
        refused.train(range(7))


def test_a_layer_that_hides_that_it_works_in_place_is_not_recomputed(in_ranks):
    in_ranks(2, changes_its_input)


class Narrowing(nn.Linear):
    """A layer whose outputs change their dtype when it is told so."""

    is_low = False

    def forward(self, x):
        outputs = super().forward(x)
        return outputs.bfloat16() if self.is_low else outputs


class Widening(nn.Linear):
    def forward(self, x):
        return super().forward(x.to(self.weight.dtype))


def casts(world):
    case = Case(lambda: nn.Sequential(Narrowing(3, 4), Widening(4, 1)))
    pair = Pair(world, case, pipeline(2, [1]))
    for is_low in (False, True, False):
        for engine in (pair.engine, pair.single):
            engine.module[0].is_low = is_low
        assert pair.step(range(8), parts=4).apart() == 0
    data = (X.float(), Y.float())
    low = Pair(world, Case(data=data, settings=Settings(precision="bfloat16")), pipeline(2))
    full = Pair(world, Case(data=data, settings=Settings()), pipeline(2))
    for batch in (range(8), range(8, 12)):
        assert low.step(batch, parts=4).apart() == 0
        full.step(batch)
    assert low.single.module[0].weight.tolist() != full.single.module[0].weight.tolist()


def test_E10_bfloat16_switched_on_between_steps_changes_what_crosses(in_ranks):
    in_ranks(2, casts)
