"""What cannot be divided, or not in the way that was asked for, is refused in words."""

import pytest
import torch
from torch import nn

from parallel import FSDP, DisagreementError, Single, UsageError, World
from parallel.sharded.blocks import find_blocks
from tests.parallel.test_sharded_gradients import (
    Blocks,
    Complex,
    Tied,
    X,
    Y,
    chain,
    share,
    squares,
    start,
)

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


class Nested(nn.Module):
    """Lists in lists, and a list of what has no parameters."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.ModuleList([nn.Linear(5, 5), nn.ReLU()]) for _ in range(2))
        self.free = nn.ModuleList([nn.ReLU()])
        self.last = nn.Linear(5, 1)


class Offering(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave, self.act = nn.Linear(5, 5), nn.Linear(5, 1), nn.Tanh()

    def pipeline_layers(self):
        return {"enter": self.enter, "act": self.act, "leave": self.leave}


@pytest.mark.parametrize(
    ("model", "names", "expected"),
    [
        (chain(), None, ["0", "2", "3", "5"]),
        (Offering(), None, ["enter", "leave"]),
        (Blocks(), None, ["blocks.0", "blocks.1", "back.0", "back.1"]),
        (Nested(), None, ["stages.0.0", "stages.1.0"]),
        (nn.Linear(2, 2), None, []),
        (nn.Sequential(chain(), nn.Linear(1, 1)), None, ["0.0", "0.2", "0.3", "0.5", "1"]),
        (Blocks(), [], []),
        (Blocks(), ["leave", "blocks"], ["leave", "blocks.0", "blocks.1"]),
        (Nested(), ["stages"], ["stages.0.0", "stages.1.0"]),
        (Tied(), ["first", "last"], []),
        (Tied(), ["first", "between"], ["between.0"]),
    ],
)
def test_blocks_are_the_named_else_a_chains_layers_else_what_lists_hold(model, names, expected):
    assert list(find_blocks(model, names).modules) == expected


def test_a_person_is_told_of_blocks_that_are_none():
    assert find_blocks(nn.Linear(2, 2), None).notices[0].startswith("the model has no layers that")
    told = "gathered with the whole model, as they share parameters with others: first, last"
    assert find_blocks(Tied(), ["first", "last"]).notices == [told]
    assert find_blocks(Blocks(), []).notices == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [("block.0", r"no module 'block\.0' with parameters; did you mean blocks\.0\?"), ("qq", "has")],
)
def test_a_name_that_is_no_module_is_refused_with_the_nearest(name, hint):
    with pytest.raises(UsageError, match=hint):
        find_blocks(Blocks(), [name])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every: wanted a whole number of at least 0, met -1"),
        ({"blocks": "layers"}, r"strategy\.blocks: wanted null, or a list of names"),
        ({"blocks": [1]}, r"strategy\.blocks: wanted null, or a list of names"),
    ],
)
def test_keys_have_bounds(keys, words):
    with pytest.raises(UsageError, match=words):
        FSDP(**keys)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.real = nn.Linear(5, 1)
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))


def refused(world):
    for kind, keys, settings, words in [
        (lambda: nn.LazyLinear(3), {}, {}, "without a shape yet cannot be divided: weight"),
        (
            Mixed,
            {},
            {},
            "but what no block holds has turn complex64, real.weight float64",
        ),
        (chain, {"mixed_precision": True}, {}, "train.precision=float64 does not; leave one"),
        (
            Complex,
            {"mixed_precision": True},
            {"precision": "float32"},
            "knows no complex numbers, as in layers.0.weight",
        ),
        (chain, {"blocks": ["4"]}, {}, "no module '4' with parameters"),
        (lambda: nn.Linear(5, 1 + world.rank), {}, {}, "the ranks built different models"),
    ]:
        with pytest.raises(UsageError, match=words):
            start(world, kind, strategy=FSDP(**keys), **settings)


def test_what_cannot_be_divided_is_refused_on_all_ranks(in_ranks):
    in_ranks(2, refused)


def outside(model, batch):
    said = squares(model, batch)
    return type(said)(said.loss + model.blocks[0][0].weight.square().sum())


def mixing(model, batch):
    said = squares(model, batch)
    return type(said)(said.loss + (batch[0][:, :4] @ model.back[0].weight).mean())


def measured(model, batch):
    said = squares(model, batch)
    return type(said)(said.loss, None, {"norm": model.back[1].weight.norm()})


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 1, sparse=True)

    def forward(self, x):
        return self.table((x[:, 0] > 0).long())


def fails_in_words(world):
    for kind, loss, words in [
        (Blocks, outside, r"loss: computed from parts of parameters here.*strategy\.blocks=\[\]"),
        (Blocks, mixing, r"a part of a parameter met a whole tensor here.*strategy\.blocks=\[\]"),
        (Blocks, measured, r"norm: computed from parts of parameters here.*strategy\.blocks=\[\]"),
        (Sparse, squares, r"table\.weight has sparse gradients, .*Embedding\(sparse=False\)"),
    ]:
        engine = start(world, kind, loss)
        with pytest.raises(UsageError, match=words):
            engine.train_step(share(world))


def test_slices_met_by_the_task_and_sparse_gradients_are_refused(in_ranks):
    in_ranks(2, fails_in_words)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 4), Adding(), nn.Linear(4, 1)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x.add_(self.bias).sin()


def not_computed_again(world):
    engine = start(world, Writing, strategy=FSDP(checkpoint_every=1))
    with pytest.raises(UsageError, match=r"layers\.1 changes what it is given in place"):
        engine.train_step(share(world))


def test_a_block_that_writes_to_its_input_is_not_computed_again(in_ranks):
    in_ranks(2, not_computed_again)


def judges_only(world):
    """Nothing to learn, or nothing at all."""
    for kind, x in ((lambda: chain().requires_grad_(False), X), (nn.Flatten, X[:, :1])):
        engine = start(world, kind, optimizers=lambda _: [])
        plain = start(World(), kind, strategy=Single(), optimizers=lambda _: [])
        [outcome] = engine.evaluate([((x, Y), 12)])
        [right] = plain.evaluate([((x, Y), 12)])
        assert float(outcome.loss) == pytest.approx(float(right.loss), rel=1e-12)


def test_models_without_anything_to_divide_are_judged(in_ranks):
    in_ranks(2, judges_only)


def evaluates_in_step(world):
    """Ranks go through as many batches; what is borrowed has no outcome."""
    engine = start(world, Blocks)
    before = [mode.training for mode in engine.module.modules()]
    count = 12 if world.is_main else 0
    outcomes = engine.evaluate([((X, Y), 12), ((X, Y), count)])
    assert len(outcomes) == (2 if world.is_main else 1)
    assert [mode.training for mode in engine.module.modules()] == before
    assert engine.in_step
    assert engine.is_split


def test_a_borrowed_batch_of_an_evaluation_has_no_outcome(in_ranks):
    in_ranks(2, evaluates_in_step)


def points_are_compared(world):
    engine = start(world, Blocks)
    engine.check_agreement(buffers=True)
    with torch.no_grad():
        engine.module.scale.add_(world.rank)
    with pytest.raises(DisagreementError, match="scale on rank 1"):
        engine.check_agreement()


def test_parameters_that_every_rank_has_are_compared(in_ranks):
    in_ranks(2, points_are_compared)
