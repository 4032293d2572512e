"""What ranks save of a divided model adds up to the whole, and goes on anywhere."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adafactor, Muon

from parallel import DDP, FSDP, EngineState, Single, UsageError, World
from tests.parallel.test_sharded_gradients import Blocks, Tied, adamw, chain, share, start, whole
from tests.parallel.test_sharded_training import Normed, Wide, apart, fused, train, two

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


LONG = {"precision": "float64", "clip_norm": 0.5}


def joined(world, state):
    """Return the state of all ranks, as the files of a checkpoint hold it."""
    parts = world.gather_objects(deepcopy(state))
    model: dict[str, torch.Tensor] = {}
    optimizer: dict[str, torch.Tensor] = {}
    for part in parts:
        assert not model.keys() & part.model.keys()
        assert not optimizer.keys() & part.optimizer.keys()
        assert part.groups == parts[0].groups
        assert part.scaler == parts[0].scaler
        model |= part.model
        optimizer |= part.optimizer
    return EngineState(model, optimizer, parts[0].groups, parts[0].scaler)


def saved(world, engine):
    state = engine.state()
    return joined(world, state) if engine.is_split else world.share(deepcopy(state))


def goes_on(world, kind, optimizers, first, then):
    """Train 3 steps by one strategy and 3 by another: as 6 in one process."""
    engine = start(world, kind, strategy=first, optimizers=optimizers, **LONG)
    train(engine, world, 3)
    state = saved(world, engine)
    before = deepcopy(state)
    torch.manual_seed(5)  # another start
    fresh = start(world, kind, strategy=then, optimizers=optimizers, **LONG)
    with torch.no_grad():
        for parameter in fresh.module.parameters():
            parameter.zero_()
    fresh.load(state)
    plain = start(World(), kind, strategy=Single(), optimizers=optimizers, **LONG)
    train(plain, World(), 3)
    alone = plain.state()
    assert state.model.keys() == alone.model.keys()
    assert state.optimizer.keys() == alone.optimizer.keys()
    assert state.groups == alone.groups
    for name, tensor in state.model.items():
        assert tensor.shape == alone.model[name].shape
    for step in range(3, 6):
        fresh.train_step(share(world, 2, step))
        plain.train_step(share(World(), 2, step))
    assert apart(fresh, plain) <= 1e-9
    torch.testing.assert_close(state.model, before.model, rtol=0, atol=0)  # left as it was
    torch.testing.assert_close(state.optimizer, before.optimizer, rtol=0, atol=0)


@pytest.mark.parametrize("optimizers", [adamw, fused, two])
@pytest.mark.parametrize(
    ("first", "then"), [(FSDP(), DDP()), (DDP(), FSDP()), (FSDP(), FSDP(cpu_offload=True))]
)
def test_a_state_goes_on_in_another_strategy(in_ranks, optimizers, first, then):
    in_ranks(2, goes_on, Blocks, optimizers, first, then)


@pytest.mark.parametrize("kind", [Tied, chain])
def test_names_are_the_models_own_tied_or_computed_again(in_ranks, kind):
    in_ranks(2, goes_on, kind, adamw, FSDP(checkpoint_every=1), FSDP(blocks=[]))


def write(world, path):
    engine = start(world, Blocks, strategy=FSDP(), optimizers=two)
    train(engine, world, 3)
    state = joined(world, engine.state())
    if world.is_main:
        torch.save((state.model, state.optimizer, state.groups), path)


def read(world, path):
    model, optimizer, groups = torch.load(path, weights_only=True, mmap=True)
    strategy = FSDP() if world.size > 1 else Single()
    engine = start(world, Blocks, strategy=strategy, optimizers=two)
    engine.load(EngineState(model, optimizer, groups, {}))
    plain = start(World(), Blocks, strategy=Single(), optimizers=two)
    train(plain, World(), 3)
    assert apart(engine, plain) <= 1e-9
    for at_work, place in ((engine, world), (plain, World())):
        at_work.train_step(share(place, 1, 4))
    assert apart(engine, plain) <= 1e-9


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 2), (2, 1)])
def test_a_state_goes_on_on_other_numbers_of_ranks(in_ranks, tmp_path, first, then):
    in_ranks(first, write, str(tmp_path / "state.pt"))
    in_ranks(then, read, str(tmp_path / "state.pt"))


def is_dealt_out(world):
    engine = start(world, Wide, strategy=FSDP(), optimizers=adamw)
    train(engine, world, 1)
    state = engine.state()
    tensors = [*state.model.values(), *state.optimizer.values()]
    held = sum(tensor.nbytes for tensor in tensors)
    largest = max(p.numel() for p in engine.module.parameters()) * 8
    every = world.gather_objects(held)
    assert max(every) - min(every) <= largest
    assert not any(isinstance(tensor, DTensor) for tensor in tensors)


def test_ranks_save_about_as_many_bytes_each(in_ranks):
    in_ranks(3, is_dealt_out)


def resident():
    """Return MiB of this process: now, and at most since the last call."""
    status = Path("/proc/self/status").read_text()
    now, peak = (int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) for key in ("VmRSS", "VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return now / 1024, peak / 1024


def large():
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(32)))  # 128 MiB


def never_whole(world):
    engine = start(world, large, strategy=FSDP(), precision="float32")
    engine.state()  # what is allocated once, is
    before, _ = resident()
    state = engine.state()
    _, peak = resident()
    kept = sum(tensor.nbytes for tensor in state.model.values()) / 2**20
    assert kept == pytest.approx(128 / world.size, rel=0.1)
    assert peak - before < kept + 24  # and a few tensors of 4 MiB
    before, _ = resident()
    engine.load(joined_lazily(world, state))
    _, peak = resident()
    assert peak - before < 128 / world.size + 24


def joined_lazily(world, state):
    """A whole state whose numbers take no memory, as those of a file that is mapped."""
    own = {name: tuple(tensor.shape) for name, tensor in state.model.items()}
    names = {name: shape for part in world.gather_objects(own) for name, shape in part.items()}
    model = {name: torch.zeros(()).expand(shape) for name, shape in names.items()}
    return EngineState(model, {}, state.groups, state.scaler)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's own figures")
def test_no_rank_holds_the_whole_model_to_save_or_to_load_it(in_ranks):
    in_ranks(4, never_whole)


def buffers_are_rank_0s(world):
    engine = start(world, Normed, strategy=FSDP())
    train(engine, world, 2)
    state = engine.state()
    named = {name for name, _ in engine.module.named_buffers()}
    assert named & state.model.keys() == (named if world.rank == 0 else set())
    mean = engine.module.blocks[0][1].running_mean
    assert all(mean.equal(other) for other in world.gather_objects(mean))
    engine.check_agreement(buffers=True)


def test_buffers_are_rank_0s(in_ranks):
    in_ranks(2, buffers_are_rank_0s)


def refuses_others(world):
    engine = start(world, chain, strategy=FSDP(), optimizers=adamw)
    train(engine, world, 1)
    state = joined(world, engine.state())
    other = start(world, Blocks, strategy=FSDP(), optimizers=adamw)
    with pytest.raises(UsageError, match="the saved weights are of another model"):
        other.load(state)
    groups = start(world, chain, strategy=FSDP(), optimizers=two)
    with pytest.raises(UsageError, match="1 optimizers were saved, but the task makes 2"):
        groups.load(state)


def test_a_state_of_another_model_is_refused(in_ranks):
    in_ranks(2, refuses_others)


def adafactor(module):
    return [Adafactor(module.parameters(), lr=0.01)]


def muon(module):
    matrices = [p for p in module.parameters() if p.ndim == 2]
    others = [p for p in module.parameters() if p.ndim < 2]
    return [Muon(matrices, lr=0.01), SGD(others, lr=0.1)]


def fused_sgd(module):
    return [SGD(module.parameters(), lr=0.1, fused=True)]


def others_are_refused(world):
    for optimizers, operation in ((adafactor, "pow_"), (muon, "add_"), (fused_sgd, "_fused_sgd_")):
        engine = start(world, chain, strategy=FSDP(), optimizers=optimizers)
        with pytest.raises(UsageError, match=rf"cannot: .*aten\.{operation}.*torch\.optim\.AdamW"):
            train(engine, world, 1)


def test_optimizers_that_torch_cannot_divide_are_refused(in_ranks):
    in_ranks(2, others_are_refused)


def reread(world):
    """Evaluating and saving meanwhile change nothing."""
    engine = start(world, Blocks, strategy=FSDP(), optimizers=adamw)
    plain = start(world, Blocks, strategy=FSDP(), optimizers=adamw)
    for step in range(4):
        engine.evaluate([(share(world).batches[0], 3)])
        state = joined(world, engine.state())
        assert whole(dict(engine.module.named_parameters())["enter.weight"]).equal(
            state.model["enter.weight"]
        )
        engine.load(state)
        engine.train_step(share(world, 1, step))
        plain.train_step(share(world, 1, step))
    assert apart(engine, plain) == 0


def test_evaluating_saving_and_loading_between_steps_changes_no_bit(in_ranks):
    in_ranks(2, reread)
