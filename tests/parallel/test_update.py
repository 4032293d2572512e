import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import Outcome, Settings, sums
from parallel.update import Update, total_norm

CPU = torch.device("cpu")


def parameters(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in found:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shapes", [[(3, 4)], [(2,), (), (5, 1)], [(0, 3), (2,)]])
def test_the_norm_is_torchs(shapes, dtype):
    found = parameters(*shapes, dtype=dtype)
    expected = nn.utils.clip_grad_norm_(found, 1e9)
    assert total_norm([p.grad for p in found]) == pytest.approx(expected.item(), rel=1e-6)


def test_the_norm_of_nothing_is_zero():
    assert total_norm([]) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_norm_shows_what_is_not_finite(bad):
    [parameter] = parameters((3,))
    parameter.grad[1] = bad
    norm, skipped = Update([SGD([parameter], lr=1.0)], Settings(clip_norm=1.0), CPU).apply()
    assert skipped is True
    assert not norm < float("inf")
    assert parameter.eq(0).all()


def test_the_factor_comes_before_the_norm_and_the_norm_before_clipping():
    [parameter] = parameters((3,))
    parameter.grad = torch.tensor([0.0, 3.0, 4.0])
    update = Update([SGD([parameter], lr=1.0)], Settings(clip_norm=1.0), CPU)
    norm, skipped = update.apply(lambda norm: (norm, torch.tensor(2.0, dtype=torch.float64)))
    assert (norm, skipped) == (10.0, False)
    assert parameter.tolist() == pytest.approx([0.0, -0.6, -0.8], rel=1e-5)


def test_parameters_without_a_gradient_are_left_alone():
    first, second = parameters((2,), (2,))
    second.grad = None
    Update([SGD([first, second], lr=1.0)], Settings(), CPU).apply()
    assert second.eq(0).all()
    assert first.ne(0).all()


def numbers(found):
    return {name: (float(value), float(weight)) for name, (value, weight) in found.items()}


def test_B6_sums_weigh_means_and_add_single_values():
    each, one = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0])
    outcomes = [
        Outcome(torch.tensor(2.0), 3.0, {"right": each, "mean": torch.tensor(4.0)}),
        Outcome(torch.tensor(6.0), torch.tensor(1), {"right": one, "mean": torch.tensor(8.0)}),
    ]
    assert numbers(sums(outcomes[:1])) == {"loss": (6, 3), "right": (2, 3), "mean": (12, 3)}
    assert numbers(sums([outcomes[0], *outcomes[:1]]))["loss"] == (12, 6)
    assert numbers(sums(outcomes[1:])) == {"loss": (6, 1), "right": (1, 1), "mean": (8, 1)}


@pytest.mark.parametrize("nothing", [0.0, torch.tensor(0.0)])
def test_what_has_no_weight_counts_for_nothing_even_if_it_is_nan(nothing):
    outcomes = [
        Outcome(torch.tensor(float("nan")), nothing, {"mean": torch.tensor(float("nan"))}),
        Outcome(torch.tensor(2.0), torch.tensor(3.0), {"mean": torch.tensor(1.0)}),
    ]
    assert numbers(sums(outcomes)) == {"loss": (6, 3), "mean": (3, 3)}
    assert numbers(sums(outcomes[:1])) == {"loss": (0, 0), "mean": (0, 0)}
