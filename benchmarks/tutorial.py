"""A classifier in one process, as a tutorial's reader types it in: what `launch.compare` is beside.

    python benchmarks/tutorial.py
    python -m launch.compare configs/net.yaml --steps 1000 --beside "python benchmarks/tutorial.py"

10 numbers to 5 to 2 classes, 10,000 random samples, batches of 100, 10 epochs: 1,000 steps. It
prints each epoch's mean loss and, last, how long training took.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class RandomDataset(Dataset[tuple[Tensor, Tensor]]):
    """Random numbers with random labels, a sample at a time."""

    def __init__(self, length: int, size: int) -> None:
        self.data = torch.randn(length, size)
        self.labels = torch.randint(0, 2, (length,))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a sample and its label."""
        return self.data[index], self.labels[index]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.data)


class Classifier(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 5)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, 2]."""
        logits: Tensor = self.fc2(self.relu(self.fc1(x)))
        return logits


def main() -> None:
    """Train, and say how it went."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(RandomDataset(10_000, 10), batch_size=100, shuffle=True)
    model = Classifier().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.time()
    for epoch in range(10):
        running = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        sys.stdout.write(f"epoch {epoch + 1}: loss {running / len(loader):.4f}\n")
    sys.stdout.write(f"training took {time.time() - start:.3f} s\n")


if __name__ == "__main__":
    main()
