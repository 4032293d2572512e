"""Whole trainings in a pipeline: the parameters are those of one process, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, Adagrad, Adam, AdamW, SparseAdam
from torch.optim.lr_scheduler import StepLR

from parallel import Outcome, Settings, UsageError
from tests.parallel.pipeline.side_by_side import Case, Pair, Y, chain, pipeline

SLOW = pytest.mark.slow
LAYOUTS = pytest.mark.parametrize(
    ("ranks", "stages"),
    [pytest.param(2, 2, marks=SLOW), pytest.param(3, 3, marks=SLOW), (4, 2)],
    ids=["2", "3", "2x2"],
)
CLIPPED = Settings(precision="float64", clip_norm=0.3)


def adamw(module):
    return [AdamW(module.parameters(), lr=0.01)]


def trained_alike(world, stages):
    pair = Pair(world, Case(settings=CLIPPED, optimizers=adamw), pipeline(stages))
    is_clipped = []
    for epoch in range(15):  # 30 steps
        order = torch.randperm(12, generator=torch.Generator().manual_seed(epoch)).tolist()
        for batch in (order[:7], order[7:]):
            pair.step(batch, accumulate=2)
            is_clipped.append(float(pair.said.grad_norm) > CLIPPED.clip_norm)
    assert any(is_clipped)
    assert pair.parameters_apart() <= 1e-9
    pair.engine.check_agreement(buffers=True)


@LAYOUTS
def test_E7_thirty_steps_end_with_the_parameters_of_one_process(in_ranks, ranks, stages):
    in_ranks(ranks, trained_alike, stages)


def norms_are_alike(world, stages):
    pair = Pair(world, Case(settings=CLIPPED), pipeline(stages)).step(range(7))
    norms = world.gather_objects(float(pair.said.grad_norm))
    assert norms[0] == pytest.approx(float(pair.expected.grad_norm), rel=1e-12)
    assert norms == norms[:1] * world.size
    assert norms[0] > CLIPPED.clip_norm
    assert pair.apart() <= 1e-12  # clipped, on all stages by the same factor


@LAYOUTS
def test_E7_the_norm_that_clips_is_that_of_all_stages(in_ranks, ranks, stages):
    in_ranks(ranks, norms_are_alike, stages)


class Embedded(nn.Module):
    """Words in, as many scores out, by the same matrix; a third use of it lies between."""

    def __init__(self, uses):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.middle = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.again = Again(self.embedding.weight) if uses == 3 else nn.Identity()
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def pipeline_layers(self):
        return {
            "embedding": self.embedding,
            "middle": self.middle,
            "again": self.again,
            "head": self.head,
        }

    def forward(self, x):
        return self.head(self.again(self.middle(self.embedding(x))))


class Again(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x + torch.tanh(x @ self.weight.T) @ self.weight


def entropy(outputs, batch):
    return Outcome(nn.functional.cross_entropy(outputs, batch[1]))


WORDS = (torch.arange(12) * 5 % 6, torch.arange(12) * 7 % 6)


def ties_hold(world, stages, uses):
    split = {2: ["again"], 3: ["middle", "head"] if uses == 2 else ["again", "head"]}[stages]
    case = Case(lambda: Embedded(uses), entropy, WORDS, adamw, CLIPPED)
    pair = Pair(world, case, pipeline(stages, split, microbatches=3))
    for batch in (range(7), range(7, 12), [3]) * 2:  # of one sample, a replica has none
        pair.step(batch)
        assert pair.apart() <= 1e-12
        assert float(pair.said.grad_norm) == pytest.approx(float(pair.expected.grad_norm))
    assert pair.parameters_apart() <= 1e-11
    weight = pair.engine.module.head.weight
    copies = world.gather_objects(None if weight.is_meta else weight.tolist())
    held = [each for each in copies if each is not None]
    assert len(held) == min(stages, uses) * world.size // stages
    assert all(each == held[0] for each in held)
    pair.engine.check_agreement()


@pytest.mark.parametrize(
    ("ranks", "stages", "uses"),
    [
        pytest.param(2, 2, 2, marks=SLOW),
        pytest.param(2, 2, 3, marks=SLOW),
        pytest.param(3, 3, 2, marks=SLOW),
        (3, 3, 3),
        (4, 2, 2),
        pytest.param(4, 2, 3, marks=SLOW),
    ],
)
def test_E9_tied_weights_stay_equal_on_all_stages(in_ranks, ranks, stages, uses):
    in_ranks(ranks, ties_hold, stages, uses)


def frozen(*numbers):
    def model():
        made = chain()
        for number in numbers:
            made[number].requires_grad_(False)
        return made

    return model


def shared_within():
    """Return a model that uses one layer twice in its first stage of two."""
    made = chain()
    made.insert(2, nn.Linear(5, 5))
    made[2].weight = made[3].weight
    return made


class Unused(nn.Linear):
    """A layer that does not use all it has."""

    def __init__(self):
        super().__init__(5, 5)
        self.spare = nn.Parameter(torch.ones(3))


def with_unused():
    made = chain()
    made[2] = Unused()
    return made


class Cut(nn.Module):
    """Lets no gradient through."""

    def forward(self, x):
        return x.detach()


def cut_off():
    """Return a model of which nothing before its fourth layer is trained."""
    made = chain()
    made[3] = Cut()
    return made


def nested():
    made = list(chain())
    return nn.Sequential(nn.Sequential(*made[:3], nn.Sequential(made[3], made[4])), *made[5:])


def weight_normed():
    made = chain()
    weight_norm(made[2])
    return made


def groups(module):
    named = dict(module.named_parameters())
    weights = [p for name, p in named.items() if name.endswith("weight")]
    biases = [p for name, p in named.items() if name.endswith("bias")]
    return [SGD([{"params": biases, "lr": 0.3}, {"params": weights, "weight_decay": 0.1}], lr=0.05)]


def two(module):
    last = list(module[-1].parameters())
    rest = [p for p in module.parameters() if all(p is not each for each in last)]
    return [AdamW(rest, lr=0.02), SGD(last, lr=0.1, momentum=0.9)]


def only_last(module):
    return [SGD(module[-1].parameters(), lr=0.1)]


MODELS = {
    "first stage frozen": Case(frozen(0, 2)),
    "middle stage frozen": Case(frozen(2)),
    "last stage frozen": Case(frozen(4, 6)),
    "shared within a stage": Case(shared_within),
    "unused parameters": Case(with_unused, optimizers=adamw),
    "cut off": Case(cut_off, optimizers=adamw),
    "nested": Case(nested),
    "weight norm": Case(weight_normed),
    "groups": Case(optimizers=groups),
    "two optimizers": Case(optimizers=two),
    "only the last layer": Case(optimizers=only_last),
    "momentum": Case(optimizers=lambda m: [SGD(m.parameters(), lr=0.1, momentum=0.9)]),
    "nesterov": Case(
        optimizers=lambda m: [SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)]
    ),
    "Adam, amsgrad": Case(optimizers=lambda m: [Adam(m.parameters(), lr=0.01, amsgrad=True)]),
    "Adagrad": Case(optimizers=lambda m: [Adagrad(m.parameters(), lr=0.1)]),
}


def models_agree(world, stages):
    for name, case in MODELS.items():
        if name in ("unused parameters", "cut off") and world.size > stages:
            continue  # refused: below
        pair = Pair(world, case, pipeline(stages))
        for batch in (range(7), range(7, 12)) * 2:
            assert pair.step(batch).apart() <= 1e-12, name
        assert pair.parameters_apart() <= 1e-12, name
        own = [p for p in pair.engine.module.parameters() if not p.is_meta]
        assert own or stages == 4, name


@pytest.mark.parametrize(
    ("ranks", "stages"),
    [pytest.param(3, 3, marks=SLOW), pytest.param(4, 4, marks=SLOW), (4, 2)],
    ids=["3", "4, one without parameters", "2x2"],
)
def test_frozen_shared_grouped_and_nested_parameters_train_as_in_one_process(
    in_ranks, ranks, stages
):
    in_ranks(ranks, models_agree, stages)


def scheduled(world):
    pair = Pair(world, Case(optimizers=groups), pipeline(2))
    curves = [StepLR(engine.optimizers[0], 2, 0.5) for engine in (pair.engine, pair.single)]
    for _ in range(5):
        pair.step(range(7))
        for curve in curves:
            curve.step()
    assert pair.parameters_apart() <= 1e-12
    assert curves[0].get_last_lr() == curves[1].get_last_lr() == [0.3 / 4, 0.05 / 4]


def test_a_scheduler_moves_the_groups_of_all_stages(in_ranks):
    in_ranks(2, scheduled)


def thaws(world):
    """Freeze the last layer, and train the first, from the second step on."""
    pair = Pair(world, Case(frozen(0)), pipeline(2))
    for step in range(4):
        if step == 1:
            for engine in (pair.engine, pair.single):
                engine.module[0].requires_grad_(True)
                engine.module[6].requires_grad_(False)
        assert pair.step(range(7)).apart() <= 1e-12, step
    assert pair.parameters_apart() <= 1e-12
    pair.engine.check_agreement()


@pytest.mark.parametrize("ranks", [2, 4])
def test_layers_may_be_frozen_and_thawed_between_steps(in_ranks, ranks):
    in_ranks(ranks, thaws)


def sparse_model():
    return nn.Sequential(
        nn.Embedding(6, 3, sparse=True), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)
    )


def sparse_and_dense(module):
    return [
        SparseAdam(module[0].parameters()),
        AdamW([*module[1].parameters(), *module[3].parameters()]),
    ]


def trains_sparse(world):
    case = Case(sparse_model, data=(WORDS[0], Y), optimizers=sparse_and_dense, settings=CLIPPED)
    pair = Pair(world, case, pipeline(2, [2]))
    if world.size == 2:
        for batch in (range(7), range(7, 12)) * 2:
            pair.step(batch)
        assert pair.parameters_apart() <= 1e-12
    else:
        kind, words = (UsageError, "not added up over replicas of a pipeline"), r"closed|reset"
        kind, words = (RuntimeError, words) if world.rank % 2 else kind
        with pytest.raises(kind, match=words):
            pair.train(range(7))


@pytest.mark.parametrize("ranks", [2, 4])
def test_sparse_gradients_train_in_one_replica_and_are_refused_in_more(in_ranks, ranks):
    in_ranks(ranks, trains_sparse)


def refused_unused(world, model, name):
    pair = Pair(world, Case(model), pipeline(2))
    if world.rank % 2:
        with pytest.raises(RuntimeError, match=r"closed|reset"):
            pair.train(range(7))
        return
    with pytest.raises(UsageError, match=rf"took no part in the loss: {name}"):
        pair.train(range(7))


@pytest.mark.parametrize(
    ("model", "name"), [(with_unused, r"2\.spare; freeze"), (cut_off, r"0\.weight, ")]
)
def test_parameters_without_a_gradient_are_refused_where_replicas_add_up(in_ranks, model, name):
    in_ranks(4, refused_unused, model, name)
