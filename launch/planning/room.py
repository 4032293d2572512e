"""How much memory each device needs, and the largest batch that leaves it enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.utils._pytree import tree_leaves

from launch.planning.candidates import Candidate
from launch.planning.subject import Subject
from parallel import Batch, Single, World
from parallel.errors import own_words
from parallel.memory import predict
from parallel.pipeline import ModelParallel

SAFE = 0.9  # of a device: predictions are off by some percent, and allocators lose some
LARGEST = 2**20  # samples: more than this is no limit of memory
TRIES = 4
SEEN = 2  # rounds, beside those in flight: each further one only holds its inputs


class UnpredictableError(Exception):
    """A task's code cannot be run on tensors without numbers; says why."""


def need(subject: Subject, candidate: Candidate, batch: int | None = None) -> tuple[int, ...]:
    """Return the bytes that each device needs for global batches of ``batch``, by rank.

    Raises ``UnpredictableError``.
    """
    size = batch or subject.config.train.global_batch_size
    strategy, sizes = candidate.strategy, candidate.sizes(size)
    if candidate.kind == "data_parallel":  # its devices' parts are one engine's on each
        strategy, sizes = Single(), [-(-each // candidate.devices) for each in sizes]
    seen = sizes[: _telling(candidate)]
    try:
        batches = subject.batches(seen)
        later = sum(_bytes(each) for each in subject.batches(sizes[len(seen) :]))
        work = subject.work(World(size=candidate.processes), batches[0])
        found = predict(strategy, work, batches)
    except Exception as error:  # a task's own code may raise anything
        said = own_words(error).strip().partition("\n")[0][:200]
        raise UnpredictableError(
            f"its memory cannot be predicted: {type(error).__name__}: {said}"
        ) from error
    each = tuple(own.need + later for own in found)
    return each * (candidate.devices // len(each))


def fits(bytes: tuple[int, ...], limit: int | None) -> bool | None:
    """Whether a device of ``limit`` bytes is enough; None where nothing is known."""
    return max(bytes) <= SAFE * limit if bytes and limit is not None else None


def _telling(candidate: Candidate) -> int | None:
    """Return after how many rounds a further one only holds its inputs; None: never."""
    strategy = candidate.strategy
    if not isinstance(strategy, ModelParallel):
        return SEEN
    course = strategy.course
    return strategy.stages + course.ahead + SEEN if course.schedule == "1f1b" else None


def _bytes(batch: Batch) -> int:
    return sum(each.nbytes for each in tree_leaves(batch) if isinstance(each, Tensor))


def largest_batch(subject: Subject, candidate: Candidate, limit: int) -> int:
    """Return the most samples of a global batch that fit; 0 if the least does not."""
    least = candidate.replicas * max(candidate.accumulate, 1)
    start = max(least, subject.config.train.global_batch_size)
    return largest(
        lambda batch: max(need(subject, candidate, batch)), least, start, int(SAFE * limit)
    )


def largest(taken: Callable[[int], int], least: int, start: int, limit: int) -> int:
    """Return the largest multiple of ``least`` whose bytes, ``taken``, are within ``limit``.

    Memory is affine in the batch, or nearly: two predictions, and a third that verifies.
    """

    def whole(batch: float) -> int:
        return int(min(batch, LARGEST)) // least * least

    known = {size: taken(size) for size in (whole(start), 2 * whole(start))}
    for _ in range(TRIES):
        guess = whole(_solve(known, limit))
        if guess < least:
            break
        if guess in known:
            break
        known[guess] = taken(guess)
        if known[guess] <= limit and (guess == whole(LARGEST) or known[guess] > 0.97 * limit):
            break
    fitting = [size for size, each in known.items() if each <= limit]
    return max(fitting) if fitting else least if taken(least) <= limit else 0


def _solve(known: dict[int, int], limit: int) -> float:
    """Return the batch that takes ``limit``, by the line through the two nearest to it."""
    a, b = sorted(known, key=lambda size: abs(known[size] - limit))[:2]
    slope = (known[b] - known[a]) / (b - a)
    return a + (limit - known[a]) / slope if slope > 0 else float(LARGEST)


def with_split(candidate: Candidate, cuts: tuple[int, ...]) -> Candidate:
    """Return ``candidate`` cut before layers ``cuts``, as a measurement found it."""
    strategy = candidate.strategy
    if not isinstance(strategy, ModelParallel) or strategy.split != "auto":
        return candidate
    return replace(candidate, strategy=replace(strategy, split=list(cuts)))
