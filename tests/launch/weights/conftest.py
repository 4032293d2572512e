"""Files of weights of every kind, good and bad."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    """An embedding whose transpose gives the scores, as language models have it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.encoder = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)))


@pytest.fixture
def make_tied():
    """``make_tied(7)`` is a model that seed 7 made."""

    def make(seed: int) -> Tied:
        torch.manual_seed(seed)
        return Tied()

    return make


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return {"a.weight": torch.randn(4, 3), "a.bias": torch.randn(4)}
