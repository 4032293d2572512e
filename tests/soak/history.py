"""What the ledgers of a run say: which steps survived, and of which samples they were made."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """An optimizer step as its last attempt did it: the samples of each rank, rank 0 first."""

    step: int
    epoch: int
    attempt: str
    ranks: tuple[tuple[int, ...], ...]

    @property
    def samples(self) -> list[int]:
        """Of the whole global batch, in order of number."""
        return sorted(sample for rank in self.ranks for sample in rank)


def entries(folder: Path, rank: int = 0) -> list[dict]:
    """Return a rank's lines, the oldest first; one that a kill broke off is left out."""
    path = folder / f"ledger-{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def history(folder: Path) -> dict[int, Step]:
    """Return each step as the last attempt did it that did it on all its ranks."""
    by_attempt: dict[tuple[int, str], dict[int, dict]] = defaultdict(dict)
    for path in folder.glob("ledger-*.jsonl"):
        rank = int(path.stem.partition("-")[2])
        for entry in entries(folder, rank):
            by_attempt[entry["step"], entry["attempt"]][rank] = entry
    found: dict[int, Step] = {}
    for entry in entries(folder):
        ranks = by_attempt[entry["step"], entry["attempt"]]
        if len(ranks) == entry["world_size"]:
            samples = tuple(tuple(ranks[r]["samples"]) for r in sorted(ranks))
            found[entry["step"]] = Step(entry["step"], entry["epoch"], entry["attempt"], samples)
    return found


def faults(steps: dict[int, Step], samples: int = 1437) -> list[str]:
    """Return what is wrong with a whole history: a gap, or a sample not once in an epoch."""
    found = []
    missing = sorted(set(range(1, max(steps, default=0) + 1)) - steps.keys())
    if missing:
        found.append(f"steps {missing[:10]} were done by no attempt that is on record")
    epochs: dict[int, Counter[int]] = defaultdict(Counter)
    for step in steps.values():
        epochs[step.epoch].update(step.samples)
    for epoch, seen in sorted(epochs.items()):
        wrong = [sample for sample in range(samples) if seen[sample] != 1]
        if wrong or len(seen) != samples:
            found.append(f"epoch {epoch}: {len(wrong)} samples not exactly once: {wrong[:5]}")
    return found
