"""Replicas that come apart are found, by name, with the reason; others are left alone."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from parallel import DDP, DisagreementError, Objective, Outcome, Settings, Share, Single


class Net(nn.Module):
    """Running statistics, tied weights, a frozen part, and a buffer that enters the math."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight
        self.norm, self.frozen = nn.BatchNorm1d(3), nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return self.frozen(self.last(self.norm(self.first(x)).tanh())) * self.scale


def squares(model, batch):
    return Outcome((model(batch) ** 2).mean())


def sgd(module):
    return [SGD(module.parameters(), lr=0.1)]


def start(world, optimizers=sgd, loss=squares, model=Net, strategy=None, **settings):
    torch.manual_seed(0)
    chosen = strategy or DDP()
    return chosen.engine(model(), optimizers, Objective(loss, loss), Settings(**settings), world)


def step(engine, world, dtype=torch.float32):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(world.rank)).to(dtype)
    return engine.train_step(Share([x], [4], 4 * world.size))


def refusal(engine, world, buffers=False):
    """Return what all ranks are told alike."""
    with pytest.raises(DisagreementError) as caught:
        engine.check_agreement(buffers)
    [text] = set(world.gather_objects(str(caught.value)))
    return text


def momentum(module):
    return [SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=True)]


def fused(module):
    trained = [p for p in module.parameters() if p.requires_grad]
    return [AdamW(trained, lr=0.01, fused=True)]


def two(module):
    trained = [p for p in module.parameters() if p.requires_grad]
    return [Adam(trained[:2], lr=0.01), SGD(trained[2:], lr=0.1, fused=True)]


def low():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).bfloat16()


def clean(world):
    ways = [(momentum, {}), (fused, {"clip_norm": 0.1}), (two, {"precision": "float64"})]
    for optimizers, settings in ways:
        engine = start(world, optimizers, **settings)
        for _ in range(3):
            step(engine, world, next(engine.module.parameters()).dtype)
            engine.check_agreement()
        own = engine.module.norm.running_mean.clone()
        assert not world.gather(own)[0].equal(world.gather(own)[1]), "nothing to agree on"
        engine.check_agreement(buffers=True)
        rows = world.gather(engine.module.norm.running_mean)
        assert rows[0].equal(rows[1])
    engine = start(world, model=low)
    step(engine, world, torch.bfloat16)
    engine.check_agreement(buffers=True)


def test_replicas_that_train_together_agree_to_the_bit(in_ranks):
    in_ranks(2, clean)


def test_one_replica_agrees_with_itself(alone):
    for strategy in (Single(), DDP()):
        start(alone, strategy=strategy).check_agreement(buffers=True)


def nudge(world):
    engine = start(world)
    step(engine, world)
    with torch.no_grad():
        weight = engine.module.norm.weight
        if world.rank == 1:
            weight[1] = torch.nextafter(weight[1], torch.tensor(9.0))
    text = refusal(engine, world)
    words = "the replicas are no longer the same: norm.weight on rank 1: changed beside the wrapped"
    assert text.startswith(words)
    assert "not from .module or a copy" in text


@pytest.mark.parametrize("processes", [2, 3])
def test_one_element_on_one_rank_that_is_off_by_one_bit_is_found(in_ranks, processes):
    in_ranks(processes, nudge)


def unfreeze(world):
    engine = start(world)
    step(engine, world)
    engine.check_agreement()
    engine.module.frozen.requires_grad_(True)
    step(engine, world)
    text = refusal(engine, world)
    assert "frozen.weight, frozen.bias on rank 1: frozen when training started and" in text
    assert "let it require gradients from the start" in text


def test_a_layer_unfrozen_after_wrapping_is_named(in_ranks):
    in_ranks(2, unfreeze)


def frozen_at_first():
    return nn.Linear(3, 1).requires_grad_(False)


def unfreeze_all(world):
    engine = start(world, model=frozen_at_first)
    engine.module.requires_grad_(True)
    step(engine, world)
    assert "weight, bias on rank 1: frozen when training started" in refusal(engine, world)


def test_a_model_unfrozen_as_a_whole_is_named(in_ranks):
    in_ranks(2, unfreeze_all)


def replace(world):
    engine = start(world, strategy=DDP(find_unused_parameters=True))
    step(engine, world)
    new = nn.Parameter(engine.module.norm.bias.detach().clone())
    engine.module.norm.bias = new
    engine.optimizers[0].param_groups[0]["params"].append(new)
    step(engine, world)
    text = refusal(engine, world)
    assert "norm.bias on rank 1: replaced by another object than the one wrapped" in text
    assert "parameter.copy_(values)" in text


def test_C14_a_parameter_replaced_after_wrapping_is_named(in_ranks):
    in_ranks(2, replace)


def bypass(world):
    """A loop of the user's own that takes the model out of its wrapper."""
    engine = start(world)
    x = torch.full((4, 3), 1.0 + world.rank)
    for _ in range(2):
        engine.optimizers[0].zero_grad()
        engine.module.last(x).square().mean().backward()
        engine.optimizers[0].step()
    text = refusal(engine, world)
    assert "first.weight, last.bias on rank 1: changed beside the wrapped training step" in text


def test_C12_training_by_the_model_taken_out_of_its_wrapper_is_found(in_ranks):
    in_ranks(2, bypass)


def inside(model, batch):
    """A loss that does a part of the training by itself."""
    part = model.norm(batch).square().sum()
    [gradient] = torch.autograd.grad(part, [model.norm.weight])
    model.norm.weight.data.sub_(gradient, alpha=0.1)
    return squares(model, batch)


def initialise_from_the_first_batch(model, batch):
    with torch.no_grad():
        if model.norm.num_batches_tracked == 0:
            model.first.bias.copy_(-batch.mean(0))
    return squares(model, batch)


def each_its_own(world, loss, name):
    engine = start(world, loss=loss)
    step(engine, world)
    assert f"{name} on rank 1: changed beside" in refusal(engine, world)


@pytest.mark.parametrize(
    ("loss", "name"),
    [(inside, "norm.weight"), (initialise_from_the_first_batch, "first.bias")],
)
def test_C12_a_loss_that_writes_to_parameters_by_its_own_batch_is_found(in_ranks, loss, name):
    in_ranks(2, each_its_own, loss, name)


def one_without(world):
    engine = start(world)
    module = engine.module
    part = module.first if world.rank == 0 else module.last
    part(torch.full((1, 3), 1.0 + world.rank)).sum().backward()
    engine.optimizers[0].step()
    text = refusal(engine, world)
    assert "last.bias on rank 1: without a gradient on rank 0; let the loss depend on it" in text
    assert "first.bias on rank 1: without a gradient on rank 1; let the loss depend on it" in text
    assert "first.weight on rank 1: changed beside" in text
    assert len(text.splitlines()) == 3


def test_a_parameter_without_a_gradient_on_one_rank_is_told_apart(in_ranks):
    in_ranks(2, one_without)


def other_buffers(world):
    engine = start(world)
    if world.rank == 1:
        engine.module.register_buffer("extra", torch.zeros(2))
    engine.check_agreement()
    text = refusal(engine, world, buffers=True)
    assert "extra is not there on rank 0, [2] float32 on rank 1; register the same" in text


def test_buffers_that_only_some_ranks_have_are_named(in_ranks):
    in_ranks(2, other_buffers)


def compared_when_saved(world):
    engine = start(world)
    step(engine, world)
    sent, send = [], torch.distributed.broadcast
    torch.distributed.broadcast = lambda tensor, *rest, **more: (
        sent.append(tensor.shape) or send(tensor, *rest, **more)
    )
    held = engine.state(compare=True)
    torch.distributed.broadcast = send
    assert len(sent) == len(list(engine.module.buffers())), "buffers are to be agreed once"
    rows = world.gather(held.model["norm.running_mean"])
    assert rows[0].equal(rows[1])
    with torch.no_grad():
        engine.module.norm.bias.add_(world.rank)
    with pytest.raises(DisagreementError, match=r"norm\.bias on rank 1"):
        engine.state(compare=True)
    assert engine.state().model["norm.bias"][0] == engine.module.norm.bias[0]


def test_a_state_may_be_compared_as_it_is_taken_and_buffers_are_agreed_once(in_ranks):
    in_ranks(2, compared_when_saved)
