"""Any batch and any layers: sizes, dtypes, containers, and what goes past a layer."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from parallel import Outcome, UsageError
from tests.parallel.pipeline.side_by_side import Case, Pair, X, Y, pipeline

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


SLOW = pytest.mark.slow
TWO_FIRST = pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=SLOW)])
MASK = (torch.arange(36).reshape(12, 3) % 4).bool()


class Call(nn.Module):
    """A layer of parameters ``size`` that is what ``function(self, value)`` says."""

    def __init__(self, function, size=(3, 3)):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, size[0] * size[1]).reshape(size).sin())
        self.function = function

    def forward(self, value):
        return self.function(self.weight, value)


def mean(outputs, batch):
    return Outcome(outputs.square().mean())


def calls(*functions):
    """Return a model of such layers, and a case for it."""
    return lambda: nn.Sequential(*map(Call, functions))


KINDS = {
    "a tuple": calls(lambda w, x: (x @ w, x), lambda w, v: v[0].tanh() @ w + v[1]),
    "a bool mask": calls(
        lambda w, x: (x @ w, x > 0), lambda w, v: (v[0] * v[1]) @ w, lambda w, x: x @ w
    ),
    "two gradients, of the same tensor": calls(
        lambda w, x: (lambda h: (h, h))(x @ w), lambda w, v: v[0] @ w + v[1].square()
    ),
    "nested": calls(
        lambda w, x: {"h": [x @ w, (x.sin() @ w,)], "none": None, "n": 2, "name": "x"},
        lambda w, v: (v["h"][0] + v["h"][1][0] ** v["n"]) @ w,
    ),
    "passed through untouched": calls(
        lambda w, x: (x @ w, x.cos() @ w),
        lambda w, v: (v[0] @ w, v[1]),
        lambda w, v: v[0] @ w + v[1],
    ),
    "left out later": calls(
        lambda w, x: (x @ w, x.cos() @ w), lambda w, v: v[0] @ w, lambda w, x: x @ w
    ),
    "int64": calls(lambda w, x: (x @ w, torch.arange(len(x)) % 3), lambda w, v: v[0] @ w + w[v[1]]),
    "complex": calls(lambda w, x: torch.fft.fft(x @ w), lambda w, z: (z * w[0]).abs()),
    "a conjugate": calls(lambda w, x: torch.complex(x @ w, x).conj(), lambda w, z: z.imag @ w),
    "0-d": calls(lambda w, x: (x @ w, w.sum()), lambda w, v: v[0] @ w * v[1]),
    "empty": calls(
        lambda w, x: (x @ w, (x @ w)[:, :0]), lambda w, v: torch.cat([v[0] @ w, v[1]], 1)
    ),
    "transposed": calls(lambda w, x: (x @ w).T, lambda w, x: x.T @ w),
    "expanded": calls(lambda w, x: w[0].expand(len(x), 3) * 1, lambda w, x: x @ w),
    "every second": calls(lambda w, x: (x @ w)[:, ::2], lambda w, x: x @ w[:2]),
    "a parameter itself": calls(lambda w, x: (x, w), lambda w, v: v[0] @ v[1] @ w),
    "other numbers each time": calls(lambda w, x: (x @ w, len(x)), lambda w, v: v[0] @ w * v[1]),
    "squeezed": calls(lambda w, x: (x @ w).squeeze(), lambda w, x: x.reshape(-1, 3) @ w),
    "float32 between": calls(lambda w, x: (x @ w).float(), lambda w, x: x.double() @ w),
    "in place on what arrives": calls(lambda w, x: x @ w, lambda w, x: x.relu_() @ w),
    "in place on one of two": calls(
        lambda w, x: (x @ w, x @ w.T), lambda w, v: (v[0].mul_(2) + v[1].sub_(1)) @ w
    ),
    "in place on half of it": calls(
        lambda w, x: x @ w, lambda w, x: torch.cat([x[:, :1].exp_(), x[:, 1:]], 1) @ w
    ),
}


def kinds_agree(world):
    for name, model in KINDS.items():
        layers = len(model())
        split = [1, 2][: world.size - 1] if layers > 2 else [1]
        if len(split) + 1 < world.size:
            continue
        pair = Pair(world, Case(model, mean), pipeline(world.size, split))
        for batch, parts in ((range(8), 4), ([3], 1), (range(7), 4)):
            assert pair.step(batch, parts=parts).apart() == 0, (name, len(batch))


@TWO_FIRST
def test_E10_E11_E16_whatever_crosses_a_cut_changes_no_bit(in_ranks, ranks):
    in_ranks(ranks, kinds_agree)


def sizes_change(world):
    pair = Pair(world, Case(), pipeline(2, microbatches=8))
    for size in (12, 1, 7, 2, 12, 5, 3):  # fewer than microbatches, then more than ever before
        assert pair.step(range(size)).apart() <= 1e-12
        said = pair.engine.evaluate([(pair.case.batch(torch.arange(size)), size)])
        expected = pair.single.evaluate([(pair.case.batch(torch.arange(size)), size)])
        if pair.is_last:
            each, alone = said[0].metrics["square"], expected[0].metrics["square"]
            torch.testing.assert_close(each, alone, rtol=1e-12, atol=1e-12)
            assert said[0].weight == size


def test_E1_E2_batches_of_any_size_in_any_order(in_ranks):
    in_ranks(2, sizes_change)


class Masked(nn.Module):
    """A layer that takes and gives a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, value):
        h = self.linear(value["x"]).tanh() * value["mask"]
        return {**value, "x": h, "skip": value.get("skip", 0) + h}


def last_of_dict(outputs, batch):
    error = (outputs["x"] + outputs["skip"] - batch["target"]).square()
    return Outcome(error.mean(), None, {"first": outputs["x"][:, 0]})


def dicts_agree(world):
    case = Case(
        lambda: nn.Sequential(*(Masked() for _ in range(4))),
        last_of_dict,
        {"x": X, "mask": MASK, "target": Y, "unused": Y},
        inputs=lambda batch: {"x": batch["x"], "mask": batch["mask"]},
    )
    pair = Pair(world, case, pipeline(world.size, list(range(1, world.size))))
    for batch in (range(8), range(8, 12)):
        assert pair.step(batch, parts=4).apart() == 0
    if pair.is_last:
        for mine, theirs in zip(pair.said.outcomes, pair.expected.outcomes, strict=True):
            assert torch.equal(mine.metrics["first"], theirs.metrics["first"])


@TWO_FIRST
def test_E11_batches_and_targets_are_dicts(in_ranks, ranks):
    in_ranks(ranks, dicts_agree)


class Ordered(nn.Linear):
    """A layer of which what it gives could not cross a cut, and need not."""

    def forward(self, x):
        return OrderedDict(x=super().forward(x))


class Chosen(nn.Linear):
    def forward(self, value):
        return super().forward(value["x"])


def within_anything_goes(world):
    case = Case(lambda: nn.Sequential(Ordered(3, 4), Chosen(4, 4), Ordered(4, 4), Chosen(4, 1)))
    for every in (0, 1, 2):
        pair = Pair(world, case, pipeline(2, [2], checkpoint_every=every))
        assert pair.step(range(8), parts=4).apart() == 0


def test_E11_within_a_stage_layers_hand_on_what_they_like(in_ranks):
    in_ranks(2, within_anything_goes)


class Skipping(nn.Module):
    """A model with skips over its stages, offered as layers that hand on tuples."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([Down(3, 4), Down(4, 5)])
        self.up = nn.ModuleList([Up(5, 4), Up(4, 3)])
        self.head = Head()

    def pipeline_layers(self):
        return [
            *((f"down.{n}", layer) for n, layer in enumerate(self.down)),
            *((f"up.{n}", layer) for n, layer in enumerate(self.up)),
            ("head", self.head),
        ]

    def forward(self, x):
        for _, layer in self.pipeline_layers():
            x = layer(x)
        return x


class Down(nn.Linear):
    def forward(self, value):
        x, *skips = value if isinstance(value, tuple) else (value,)
        return (super().forward(x).tanh(), x, *skips)


class Up(nn.Linear):
    def forward(self, value):
        x, skip, *skips = value
        return (super().forward(x).tanh() + skip, *skips)


class Head(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)

    def forward(self, value):
        (x,) = value
        return super().forward(x)


def skips_agree(world):
    cuts = {2: (["up.0"], [1], [4]), 3: (["down.1", "up.1"], [2, 4])}
    for split in cuts[world.size]:
        pair = Pair(world, Case(Skipping), pipeline(world.size, split))
        for batch in (range(8), range(8, 12)):
            assert pair.step(batch, parts=4).apart() == 0, split
        assert pair.parameters_apart() == 0


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=SLOW), 3])
def test_E11_skips_cross_several_cuts(in_ranks, ranks):
    in_ranks(ranks, skips_agree)


def odd_is_refused(world):
    case = Case(calls(lambda w, x: {x @ w}, lambda w, x: x), mean)
    pair = Pair(world, case, pipeline(2, [1]))
    words = "layer '0', a Call, returned a set, which cannot go from one stage to the next"
    expected = (RuntimeError, r"closed|reset") if world.rank else (UsageError, words)
    with pytest.raises(expected[0], match=expected[1]):
        pair.train(range(8))


def test_E11_what_cannot_cross_is_refused_with_its_layers_name(in_ranks):
    in_ranks(2, odd_is_refused)


def each_square(outputs, batch):
    return Outcome(outputs.square())


def cut_off(outputs, batch):
    return Outcome(outputs.sum().detach())


def loss_is_checked(world, loss, words):
    pair = Pair(world, Case(loss=loss), pipeline(2))
    expected = (UsageError, words) if pair.is_last else (RuntimeError, r"closed|reset")
    with pytest.raises(expected[0], match=expected[1]):
        pair.train(range(8))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (each_square, r"the task's loss has shape \[2, 1\]"),
        pytest.param(cut_off, "does not depend on any", marks=SLOW),
    ],
)
def test_a_loss_that_teaches_nothing_is_refused(in_ranks, loss, words):
    in_ranks(2, loss_is_checked, loss, words)
