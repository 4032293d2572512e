"""One process: weights, precision, clipping, skipping."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from parallel import Objective, Outcome, Settings, Share, Single, UsageError

X = torch.linspace(-1, 2, 12).reshape(6, 2)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def squares(model, batch):
    return Outcome((model(batch) ** 2).mean())


def weighted(model, batch):
    """The mean over ``weights``: NaN where they are all 0."""
    x, weights = batch
    each = (model(x) ** 2).squeeze(1)
    return Outcome((each * weights).sum() / weights.sum(), weights.sum())


def start(world, model, loss=squares, optimizer=None, **settings):
    make = optimizer or (lambda module: [SGD(module.parameters(), lr=1.0)])
    return Single().engine(model, make, Objective(loss, loss), Settings(**settings), world)


def whole(batch, samples=6):
    return Share([batch], [samples], samples)


def gradient(module):
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def test_several_processes_are_refused():
    with pytest.raises(UsageError, match=r"'single' trains in one process, but 2 were started"):
        Single().check(2)
    Single().check(1)


@pytest.mark.parametrize("padding", [X, X * float("nan"), X * float("inf")])
def test_a_batch_of_padding_alone_does_not_poison_the_step(alone, padding):
    engine, plain = start(alone, net(), weighted), start(alone, net(), weighted)
    ones, zeros = torch.ones(6), torch.zeros(6)
    result = engine.train_step(Share([(X, ones), (padding, zeros)], [6, 6], 12))
    expected = plain.train_step(whole((X, ones)))
    assert not result.skipped
    assert float(result.grad_norm) == pytest.approx(float(expected.grad_norm), rel=1e-6)
    torch.testing.assert_close(gradient(engine.module), gradient(plain.module))
    assert [float(o.weight) for o in result.outcomes] == [6.0, 0.0]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_step_of_padding_alone_leaves_the_parameters_finite(alone, precision):
    engine = start(alone, net(), weighted, precision=precision)
    before = deepcopy(engine.module.state_dict())
    engine.train_step(whole((X.to(engine.module[0].weight.dtype), torch.zeros(6))))
    assert all(value.equal(before[name]) for name, value in engine.module.state_dict().items())


def test_C11_rounds_of_unequal_weight_make_the_mean_over_the_weight(alone):
    engine, plain = start(alone, net(), weighted), start(alone, net(), weighted)
    weights = torch.tensor([1.0, 7.0, 0.0, 2.0, 2.0, 5.0])
    engine.train_step(Share([(X[:1], weights[:1]), (X[1:], weights[1:])], [1, 5], 6))
    plain.train_step(whole((X, weights)))
    torch.testing.assert_close(gradient(engine.module), gradient(plain.module))


def test_a_weight_may_be_a_plain_number(alone):
    def loss(model, batch):
        return Outcome(squares(model, batch).loss, float(len(batch)))

    engine, plain = start(alone, net(), loss), start(alone, net())
    engine.train_step(Share([X[:1], X[1:]], [1, 5], 6))
    plain.train_step(whole(X))
    torch.testing.assert_close(gradient(engine.module), gradient(plain.module))


def test_a_gradient_that_is_not_finite_updates_nothing_and_says_so(alone):
    engine = start(alone, net(), optimizer=lambda m: [AdamW(m.parameters())])
    engine.train_step(whole(X))
    before = deepcopy(engine.state())
    result = engine.train_step(whole(X * float("inf")))
    assert result.skipped
    after = engine.state()
    for held, expected in ((after.model, before.model), (after.optimizer, before.optimizer)):
        assert all(held[name].equal(value) for name, value in expected.items())
    assert not engine.train_step(whole(X)).skipped


def test_float16_scales_the_loss_and_backs_off(alone):
    engine = start(alone, net(), precision="float16")
    scale = engine.state().scaler["scale"]
    assert engine.train_step(whole(X * 1e30)).skipped
    assert engine.state().scaler["scale"] == scale / 2
    plain = start(alone, net())
    result, expected = engine.train_step(whole(X)), plain.train_step(whole(X))
    assert not result.skipped
    assert float(result.grad_norm) == pytest.approx(float(expected.grad_norm), rel=1e-2)
    torch.testing.assert_close(
        gradient(engine.module), gradient(plain.module), rtol=1e-2, atol=1e-2
    )


def test_bfloat16_computes_low_and_keeps_parameters_high(alone):
    seen = []

    def loss(model, batch):
        seen.append(model(batch).dtype)
        return squares(model, batch)

    engine = start(alone, net(), loss, precision="bfloat16")
    result = engine.train_step(whole(X))
    engine.evaluate([(X, 6)])
    assert seen == [torch.bfloat16] * 2
    assert {p.dtype for p in engine.module.parameters()} == {torch.float32}
    assert not result.skipped


def test_float64_is_for_parameters_and_buffers(alone):
    engine = start(alone, nn.Sequential(net(), nn.BatchNorm1d(1)), precision="float64")
    kinds = {name: value.dtype for name, value in engine.state().model.items()}
    assert kinds.pop("1.num_batches_tracked") == torch.int64
    assert set(kinds.values()) == {torch.float64}


@pytest.mark.parametrize("clip_norm", [1e-3, 1e3])
def test_clipping_is_torchs_over_all_optimizers_together(alone, clip_norm):
    def two(module):
        return [SGD(module[0].parameters(), lr=1.0), SGD(module[2].parameters(), lr=1.0)]

    engine, plain = start(alone, net(), optimizer=two, clip_norm=clip_norm), net()
    result = engine.train_step(whole(X))
    squares(plain, X).loss.backward()
    total = nn.utils.clip_grad_norm_(plain.parameters(), clip_norm)
    assert float(result.grad_norm) == pytest.approx(total.item(), rel=1e-6)
    torch.testing.assert_close(gradient(engine.module), gradient(plain))


def test_gradients_of_the_last_step_are_gone(alone):
    engine = start(alone, net(), optimizer=lambda m: [SGD(m.parameters(), lr=0.0)])
    norms = [engine.train_step(whole(X)).grad_norm for _ in range(3)]
    assert norms[0] == norms[1] == norms[2]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda model, x: Outcome(model(x)), r"shape \[6, 1\], wanted the batch's mean"),
        (lambda model, x: Outcome(model(x).mean().detach()), "does not depend on any trainable"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused(alone, loss, words):
    with pytest.raises(UsageError, match=words):
        start(alone, net(), loss).train_step(whole(X))


def test_an_evaluation_says_one_outcome_for_each_batch_with_its_samples(alone):
    engine = start(alone, net())
    outcomes = engine.evaluate([(X[:4], 4), (X[4:], 2)])
    assert [o.weight for o in outcomes] == [4.0, 2.0]
    assert not any(o.loss.requires_grad for o in outcomes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its compiler
def test_a_compiled_model_trains_alike(alone):
    engine, plain = start(alone, net(), compile=True), start(alone, net())
    for _ in range(2):
        engine.train_step(whole(X))
        plain.train_step(whole(X))
    assert engine.state().model.keys() == plain.state().model.keys()
    torch.testing.assert_close(engine.state().model, plain.state().model)
