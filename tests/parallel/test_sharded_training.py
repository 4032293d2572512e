"""Whole trainings in slices end where one process ends, whatever the options."""

import math

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.optim import SGD, AdamW

from parallel import DDP, FSDP, Share, Single, UsageError, World
from tests.parallel.test_sharded_gradients import (
    Blocks,
    Frozen,
    X,
    Y,
    adamw,
    chain,
    share,
    squares,
    start,
    tokens,
    whole,
)

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


class Normed(nn.Module):
    """Blocks with buffers, without dropout."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh()) for _ in range(3)
        )
        self.last = nn.Linear(5, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Dropping(Normed):
    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.append(nn.Dropout(0.5))


def fused(module):
    return [AdamW(module.parameters(), lr=0.01, fused=True)]


def two(module):
    flat = [p for p in module.parameters() if p.ndim < 2]
    others = [p for p in module.parameters() if p.ndim > 1]
    groups = [{"params": others[:2]}, {"params": others[2:], "lr": 0.003}]
    return [SGD(flat, lr=0.1, momentum=0.9), AdamW(groups, lr=0.01, amsgrad=True)]


def train(engine, world, steps=30, rounds=2):
    return [engine.train_step(share(world, rounds, step)) for step in range(steps)]


def apart(engine, plain):
    """Return the largest difference of parameters and buffers."""
    found, right = engine.module.state_dict(), plain.module.state_dict()
    assert found.keys() == right.keys()
    return max(float((whole(found[name]) - whole(right[name])).abs().max()) for name in right)


def training_agrees(world, kind, loss, optimizers):
    engine = start(world, kind, loss, optimizers=optimizers, clip_norm=0.5)
    plain = start(World(), kind, loss, Single(), optimizers, clip_norm=0.5)
    norms = [float(result.grad_norm) for result in train(engine, world)]
    expected = [float(result.grad_norm) for result in train(plain, World())]
    assert max(expected) > 0.5  # some are clipped
    assert norms == pytest.approx(expected, rel=1e-8)
    assert apart(engine, plain) <= 1e-9


@pytest.mark.parametrize(
    ("ranks", "kind", "loss", "optimizers"),
    [
        (2, Blocks, squares, adamw),
        (3, Blocks, tokens, fused),
        (4, chain, squares, two),
    ],
)
def test_thirty_steps_end_where_one_process_ends(in_ranks, ranks, kind, loss, optimizers):
    in_ranks(ranks, training_agrees, kind, loss, optimizers)


def options_agree(world, keys):
    engine = start(world, Normed, strategy=FSDP(**keys), optimizers=adamw)
    plain = start(world, Normed, strategy=FSDP(), optimizers=adamw)
    train(engine, world, 5)
    train(plain, world, 5)
    assert list(engine.module.state_dict()) == list(plain.module.state_dict())
    for name, tensor in engine.module.state_dict().items():
        torch.testing.assert_close(
            whole(tensor), whole(plain.module.state_dict()[name]), rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize(
    "keys",
    [
        {"reshard_after_forward": False},
        {"cpu_offload": True},
        {"checkpoint_every": 1},
        {"checkpoint_every": 2, "reshard_after_forward": False},
        {"blocks": []},
        {"blocks": ["blocks"], "find_unused_parameters": True},
    ],
    ids=str,
)
def test_E8_options_change_no_number_and_no_buffer(in_ranks, keys):
    in_ranks(2, options_agree, keys)


def nested_agrees(world, keys):
    """Blocks in a block that is computed again are gathered once more."""
    engine = start(world, Normed, strategy=FSDP(**keys, checkpoint_every=1), precision="float32")
    plain = start(world, Normed, strategy=FSDP(**keys), precision="float32")
    for step in range(3):
        for at_work in (engine, plain):
            at_work.train_step(low(share(world, 1, step)))
    assert apart(engine, plain) < 1e-6


@pytest.mark.parametrize(
    "keys", [{"mixed_precision": True}, {"blocks": ["blocks", "blocks.0.0", "blocks.2.1"]}], ids=str
)
def test_blocks_in_a_block_that_is_computed_again_change_no_number(in_ranks, keys):
    in_ranks(2, nested_agrees, keys)


def recomputed_dropout_agrees(world):
    ends = []
    for every in (0, 1):
        engine = start(world, Dropping, strategy=FSDP(checkpoint_every=every))
        torch.manual_seed(7 + world.rank)
        train(engine, world, 3)
        ends.append([whole(t) for t in engine.module.state_dict().values()])
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


def test_a_block_computed_again_drops_the_same(in_ranks):
    in_ranks(2, recomputed_dropout_agrees)


def computes_less_often(world):
    calls = []
    for every in (0, 1):
        engine = start(world, Normed, strategy=FSDP(checkpoint_every=every))
        watched = engine.module.blocks[0][0]
        watched.register_forward_hook(lambda *_, every=every: calls.append(every))
        train(engine, world, 1, rounds=1)
    assert calls == [0, 1, 1]


def test_a_block_is_computed_again_in_backward(in_ranks):
    in_ranks(2, computes_less_often)


def rounded(world):
    engine = start(world, Blocks, strategy=FSDP(mixed_precision=True), precision="float32")
    plain = start(world, Blocks, precision="float32")
    seen = []
    engine.module.blocks[1][0].register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    for step in range(5):
        losses = [
            at_work.train_step(low(share(world, 1, step))).outcomes[0].loss
            for at_work in (engine, plain)
        ]
        assert losses[0].dtype == torch.float32
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-2)
    assert seen[0] == torch.bfloat16
    assert {p.dtype for p in engine.module.parameters()} == {torch.float32}
    assert apart(engine, plain) < 1e-2


def test_mixed_precision_computes_in_bfloat16_and_keeps_float32(in_ranks):
    in_ranks(2, rounded)


def layered():
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))


def normalised(world, kind):
    """Running statistics are float32, and so is what normalises by them."""
    engine = start(world, kind, strategy=FSDP(mixed_precision=True), precision="float32")
    low_loss = start(world, kind, precision="bfloat16").train_step(low(share(world, 1)))
    result = engine.train_step(low(share(world, 1)))
    assert float(result.outcomes[0].loss) == pytest.approx(
        float(low_loss.outcomes[0].loss), rel=1e-2
    )
    assert apart(engine, start(world, kind, precision="float32")) > 0  # it trained
    [outcome] = engine.evaluate([((X.float(), Y.float()), 12)])
    assert outcome.loss.dtype == torch.float32


@pytest.mark.parametrize("kind", [Normed, layered])
def test_mixed_precision_leaves_batch_normalisation_as_it_is(in_ranks, kind):
    in_ranks(2, normalised, kind)


def scaled(world):
    engine = start(world, chain, precision="float16")
    plain = start(World(), chain, strategy=Single(), precision="float16")
    found = [engine.train_step(low(share(world, 1, step))).skipped for step in range(4)]
    right = [plain.train_step(low(share(World(), 1, step))).skipped for step in range(4)]
    assert [bool(skipped) for skipped in found] == [bool(skipped) for skipped in right]
    assert engine.state().scaler == plain.state().scaler


def low(given):
    batches = [tuple(each.float() for each in batch) for batch in given.batches]
    return type(given)(batches, given.counts, given.total)


def test_float16_is_scaled_and_skipped_alike(in_ranks):
    in_ranks(2, scaled)


def poisoned(model, batch):
    said = squares(model, batch)
    return type(said)(said.loss * torch.nan if len(batch[0]) == 2 else said.loss)


def borrowed_nan(world):
    """On 4 ranks the last one borrows two samples, and computes NaN from them."""
    engine = start(world, Normed, poisoned)
    before = {name: whole(t).clone() for name, t in engine.module.named_buffers()}
    result = engine.train_step(share(world))
    assert math.isfinite(float(result.grad_norm))
    assert not result.skipped
    assert float(result.outcomes[0].weight or 0) == (
        0 if world.rank == 3 else [5, 4, 3][world.rank]
    )
    if world.rank == 3:
        after = dict(engine.module.named_buffers())
        assert all(after[name].equal(tensor) for name, tensor in before.items())


def test_a_borrowed_batch_counts_exactly_nothing(in_ranks):
    in_ranks(4, borrowed_nan)


def weightless(model, batch, rank):
    """On rank 1 there are no tokens: their mean is NaN."""
    said = tokens(model, batch)
    return type(said)(said.loss * torch.nan, said.weight * 0) if rank == 1 else said


def weightless_nan(world):
    engine = start(world, chain, lambda model, batch: weightless(model, batch, world.rank))
    plain = start(World(), chain, tokens, Single())
    result = engine.train_step(share(world))
    right = plain.train_step(Share([(X[:7], Y[:7])], [7], 7))  # what rank 0 has
    assert float(result.grad_norm) == pytest.approx(float(right.grad_norm), rel=1e-12)
    assert apart(engine, plain) <= 1e-12


def test_a_batch_without_weight_counts_exactly_nothing(in_ranks):
    in_ranks(2, weightless_nan)


def skips_together(world):
    engine = start(world, Blocks, lambda model, batch: nan_on_rank_1(model, batch, world.rank))
    before = [whole(p).clone() for p in engine.module.parameters()]
    result = engine.train_step(share(world))
    assert result.skipped
    after = [whole(p) for p in engine.module.parameters()]
    assert all(a.equal(b) for a, b in zip(after, before, strict=True))


def nan_on_rank_1(model, batch, rank):
    said = squares(model, batch)
    return type(said)(said.loss * (torch.nan if rank == 1 else 1.0))


def test_gradients_that_are_not_finite_on_one_rank_are_skipped_by_all(in_ranks):
    in_ranks(3, skips_together)


def memory_is_divided(world):
    engine = start(world, Wide, optimizers=adamw)
    engine.train_step(share(world))
    total = sum(p.numel() for p in engine.module.parameters())
    local = sum(p.to_local().numel() for p in engine.module.parameters())
    assert local == pytest.approx(total / world.size, rel=0.02)
    kept = sum(
        slot.to_local().numel()
        for slots in engine.optimizers[0].state.values()
        for slot in slots.values()
        if slot.ndim
    )
    assert kept == 2 * local
    engine.evaluate([((X, Y), 12)])
    assert sum(p.to_local().numel() for p in engine.module.parameters()) == local


class Wide(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 240), nn.Tanh(), nn.Linear(240, 240), nn.Linear(240, 1))


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_holds_its_part(in_ranks, ranks):
    in_ranks(ranks, memory_is_divided)


class Branching(nn.Module):
    """Two ways: rank 1 alone takes the second; nobody takes the third."""

    def __init__(self):
        super().__init__()
        self.ways = nn.Linear(5, 1), nn.Linear(5, 1), nn.Linear(5, 1)
        self.first, self.second, self.third = self.ways
        self.is_second = False

    def forward(self, x):
        return self.first(x) + (self.second(x) if self.is_second else 0)


def thaws(world):
    engine = start(world, Frozen, optimizers=adamw)
    plain = start(World(), Frozen, strategy=Single(), optimizers=adamw)
    for frozen in (True, False, True):
        for at_work, place in ((engine, world), (plain, World())):
            at_work.module.layers[0].requires_grad_(frozen)
            at_work.module.layers[1].requires_grad_(not frozen)
            train(at_work, place, 2)
        assert apart(engine, plain) <= 1e-12


def test_blocks_that_freeze_and_thaw_train_as_in_one_process(in_ranks):
    in_ranks(2, thaws)


def unused_is_refused(world):
    engine = start(world, Branching)
    with pytest.raises(UsageError, match=r"took no part in the loss: second\.weight, second\.bias"):
        engine.train_step(share(world))


def unused_is_found(world):
    engine = start(world, Branching, strategy=FSDP(find_unused_parameters=True), optimizers=adamw)
    ddp = start(world, Branching, strategy=DDP(find_unused_parameters=True), optimizers=adamw)
    for at_work in (engine, ddp):
        at_work.module.is_second = world.rank == 1
        train(at_work, world, 3, rounds=1)
        assert at_work.module.third.weight.grad is None
    assert apart(engine, ddp) <= 1e-12


def test_parameters_without_a_gradient_are_refused_in_words_or_left_alone(in_ranks):
    in_ranks(2, unused_is_refused)
    in_ranks(2, unused_is_found)


def compiled(world):
    counters.clear()
    engine = start(world, Normed, strategy=FSDP(checkpoint_every=2), compile=True)
    plain = start(world, Normed)
    train(engine, world, 2, rounds=1)
    train(plain, world, 2, rounds=1)
    assert counters["stats"]["unique_graphs"] > 0
    ends = zip(engine.module.parameters(), plain.module.parameters(), strict=True)
    assert all(torch.allclose(whole(a), whole(b), rtol=1e-9) for a, b in ends)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its compiler
def test_compiled_blocks_train_alike(in_ranks):
    in_ranks(2, compiled)


def test_settings_of_one_process_give_the_model_alone_and_say_so(alone):
    engine = start(alone, chain, strategy=FSDP(cpu_offload=True))
    assert engine.notices == ["one process divides nothing: it ignores strategy.cpu_offload"]
