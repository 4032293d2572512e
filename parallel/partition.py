"""Costs of layers to cuts between stages: exact, in integers and floats alone.

Cuts are the first layers of stages 1, 2, ...:

    layers   0 1 2 3 4 5 6      cuts (3, 5)      stages [0, 3) [3, 5) [5, 7)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate

from parallel.errors import UsageError

Cuts = tuple[int, ...]
Fits = Callable[[int, int, int], bool]  # whether stage s can hold layers [a, b)
Segment = Callable[[int, int, int], int]  # what stage s of layers [a, b) costs


def cut(
    costs: Sequence[float],
    stages: int,
    *,
    messages: Sequence[float] | None = None,
    fits: Fits | None = None,
) -> Cuts:
    """Return the cuts into contiguous, non-empty stages whose dearest stage is the cheapest.

    messages: what it costs to send what layer i gives to layer i + 1; both neighbours pay.
    Of equals, the least total of messages, then the earliest cuts: the first stages of 1F1B hold
    the most microbatches. Dynamic programming in O(layers² · stages). Raises ``UsageError`` where
    there are fewer layers than stages, or no cut fits.
    """
    layers = len(costs)
    _check(layers, stages)
    sent = messages if messages is not None else [0.0] * layers
    whole = _exact([*costs, *sent])
    cost = _segments(whole[:layers], whole[layers:])
    most = dearest(layers, stages, cost, fits)

    def cheap(stage: int, a: int, b: int) -> bool:
        return cost(stage, a, b) <= most and (fits is None or fits(stage, a, b))

    return _earliest(whole[layers:], stages, cheap)


def even(layers: int, stages: int) -> Cuts:
    """Return the cuts into layer counts that differ by one at most."""
    _check(layers, stages)
    return tuple(layers * stage // stages for stage in range(1, stages))


def bounds(layers: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first layer of each stage, and the one behind its last."""
    return list(zip((0, *cuts), (*cuts, layers), strict=True))


def shares(costs: Sequence[float], cuts: Sequence[int]) -> tuple[float, ...]:
    """Return each stage's part of all costs; zeros where nothing costs anything."""
    total = sum(costs)
    return tuple(sum(costs[a:b]) / total if total else 0.0 for a, b in bounds(len(costs), cuts))


def _check(layers: int, stages: int) -> None:
    if stages < 1:
        raise UsageError(f"strategy.stages={stages}: at least 1 stage is wanted")
    if layers < stages:
        raise UsageError(
            f"strategy.stages={stages} wants a layer for each stage, but the model has "
            f"{layers} layers to cut between; use strategy.stages={max(layers, 1)} or fewer"
        )


def _exact(numbers: Sequence[float]) -> list[int]:
    """Scale all to integers: sums of floats round, and would decide between equals."""
    fractions = [Fraction(number) for number in numbers]
    scale = max((each.denominator for each in fractions), default=1)  # powers of 2
    return [int(each * scale) for each in fractions]


def _segments(costs: Sequence[int], messages: Sequence[int]) -> Segment:
    layers, until = len(costs), [0, *accumulate(costs)]
    into = [0, *messages[: layers - 1]]  # what the stage that begins at a receives
    out = [0, *messages[: layers - 1], 0]  # what the stage that ends before b sends
    return lambda stage, a, b: until[b] - until[a] + into[a] + out[b]


def _ends(stage: int, first: int, layers: int, stages: int) -> range:
    """Where a stage from layer ``first`` on may end: all later ones keep a layer each."""
    left = stages - 1 - stage
    return range(first + 1, layers - left + 1) if left else range(layers, layers + 1)


def dearest(layers: int, stages: int, cost: Segment, fits: Fits | None = None) -> int:
    """Return the cost of the dearest stage under the best cuts. Raises as ``cut`` does."""
    _check(layers, stages)
    best: dict[int, int] = {layers: 0}  # first layer of stage -> dearest of it and the later ones
    for stage in reversed(range(stages)):
        later, best = best, {}
        for a in range(stage, layers) if stage else [0]:
            for b in _ends(stage, a, layers, stages):
                if b not in later:
                    continue
                value = max(cost(stage, a, b), later[b])
                is_better = a not in best or value < best[a]
                if is_better and (fits is None or fits(stage, a, b)):
                    best[a] = value
    if 0 not in best:
        raise UsageError(f"no cut of {layers} layers into {stages} stages fits")
    return best[0]


def _earliest(messages: Sequence[int], stages: int, cheap: Fits) -> Cuts:
    """Return the cuts with the least messages, of these the earliest, among cheap stages."""
    layers = len(messages)
    totals: dict[int, int] = {layers: 0}  # first layer of a stage -> messages from there on
    choice: list[dict[int, int]] = [{} for _ in range(stages)]  # of a stage: first layer -> end
    for stage in reversed(range(stages)):
        later, totals = totals, {}
        for a in range(stage, layers) if stage else [0]:
            for b in _ends(stage, a, layers, stages):
                if b not in later or not cheap(stage, a, b):
                    continue
                total = later[b] + (messages[b - 1] if b < layers else 0)
                if a not in totals or total < totals[a]:
                    totals[a], choice[stage][a] = total, b
    cuts = [0]
    for stage in range(stages - 1):
        cuts.append(choice[stage][cuts[-1]])
    return tuple(cuts[1:])
