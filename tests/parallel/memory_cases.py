"""Models, and ways to train them, of which memory is predicted and counted."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.optim import AdamW

from parallel import Objective, Outcome, Pipeline, Settings, Single, Work, World
from parallel.memory import predict, take_steps
from parallel.tracker import Tracker

META, HOST = torch.device("meta"), torch.device("cpu")
PLAIN = Settings()


def linear():
    return nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 16)
    )


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 64),
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.norm = nn.Linear(32, 96), nn.LayerNorm(32)

    def forward(self, x):
        q, k, v = self.wide(self.norm(x)).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + seen.transpose(1, 2).flatten(2)


def attention():
    return nn.Sequential(nn.Embedding(50, 32), *(Attention() for _ in range(4)), nn.Linear(32, 16))


def tied():
    model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128))
    model[2].weight = model[0].weight
    return model


def copying():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1))


INPUTS = {
    linear: lambda n: torch.rand(n, 64),
    convolutions: lambda n: torch.rand(n, 3, 16, 16),
    copying: lambda n: torch.rand(n, 3, 16, 16),
    attention: lambda n: torch.randint(50, (n, 24)),
    tied: lambda n: torch.rand(n, 128),
}


def squares(outputs, batch):
    return Outcome(functional.mse_loss(outputs, torch.zeros_like(outputs)))


def tokens(outputs, batch):
    loss = functional.cross_entropy(outputs.flatten(0, 1), batch.flatten() % 16, reduction="mean")
    return Outcome(loss, weight=(batch > 3).sum())


def objective(of):
    return Objective(
        lambda model, batch: of(model(batch), batch),
        lambda model, batch: of(model(batch), batch),
        lambda batch: batch,
        of,
    )


@dataclass(frozen=True)
class Case:
    make: object
    counts: tuple = (32,)
    strategy: object = Single()
    processes: int = 1
    optimizer: object = AdamW
    keys: tuple = ()
    settings: Settings = PLAIN
    loss: object = squares

    def batches(self):
        own = [INPUTS[self.make](n) for n in self.counts]
        is_double = self.settings.precision == "float64"
        return [b.double() if is_double and b.is_floating_point() else b for b in own]

    def work(self, model, world):
        def optimizers(model):
            return [self.optimizer(model.parameters(), lr=1e-3, **dict(self.keys))]

        batch = self.batches()[0]
        return Work(model, optimizers, objective(self.loss), self.settings, world, lambda: batch)

    def predicted(self):
        with META:
            model = self.make()
        batches = [batch.to("meta") for batch in self.batches()]
        return predict(self.strategy, self.work(model, World(size=self.processes)), batches)


def pipeline(split, schedule="1f1b", microbatches=4, every=0):
    keys = {"checkpoint_every": every, "microbatches": microbatches, "schedule": schedule}
    return Pipeline(len(split) + 1, split, "params", **keys)


def counted(case, world):
    """The most bytes of live tensors in real training; the whole model is made before."""
    torch.manual_seed(0)
    work, batches = case.work(case.make(), world), case.batches()
    tracker = Tracker(HOST)
    with tracker:
        take_steps(case.strategy.start(work), tracker, batches, 2)
    return tracker.peak
