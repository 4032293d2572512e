"""Random generators: one seed from many facts, and a loan of all generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


def derive(*facts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every fact and on nothing else."""
    digest = blake2b("/".join(map(str, facts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    """Seed python's, numpy's (where it is in use) and torch's generators."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def lent(seed: int) -> Iterator[None]:
    """Seed the CPU generators, and afterwards leave them as they were."""
    numpy = sys.modules.get("numpy")
    ours, theirs = random.getstate(), numpy.random.get_state() if numpy is not None else None
    torchs = torch.get_rng_state()
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(ours)
        if numpy is not None and theirs is not None:
            numpy.random.set_state(theirs)
        torch.set_rng_state(torchs)
