import copy

import torch
from torch import nn

from parallel.sharded.recompute import recompute


class Counting(nn.Module):
    """A buffer that is replaced, and read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return x.tanh() * self.seen


def block():
    spectral = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(
        spectral(nn.Linear(4, 4)), nn.BatchNorm1d(4), Counting(), nn.Tanh()
    ).double()


def test_a_block_computed_again_finds_the_buffers_of_its_forward_and_leaves_those_of_now():
    torch.manual_seed(0)
    kept, again = block(), None
    again = copy.deepcopy(kept)
    recompute(again, "block")
    batches = [torch.randn(8, 4).double() for _ in range(3)]
    for module in (kept, again):
        held = [module(batch).sum() for batch in batches]  # all forwards before a backward
        for loss in held:
            loss.backward()
    for own, other in zip(again.parameters(), kept.parameters(), strict=True):
        assert own.grad.equal(other.grad)
    for own, other in zip(again.buffers(), kept.buffers(), strict=True):
        assert own.equal(other)
