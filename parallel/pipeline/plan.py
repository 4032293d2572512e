"""Where a model is cut into stages, what that should give, and the words that say so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from parallel.errors import UsageError
from parallel.partition import Cuts, bounds, cut, dearest, even, shares
from parallel.pipeline.profile import MEASURES, LayerCost
from parallel.pipeline.schedule import Forecast, in_flight, simulate
from parallel.pipeline.split import called, cuts_of

GIB = 2**30
NOUNS = {"time": "time", "flops": "arithmetic", "params": "parameters", "layers": "layers"}


@dataclass(frozen=True)
class Terms:
    """What a model is cut for.

    bytes_per_s, latency_s: of a message between neighbours; None: messages are taken as free.
    """

    stages: int = 2
    microbatches: int = 8
    schedule: str = "1f1b"
    ahead: int = 0
    balance: str = "time"
    memory_limit_gib: float | None = None  # of each device
    bytes_per_s: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A cut into stages, and what it should give.

    names: of the layers at the cuts, each the first of its stage.
    by: what was balanced: ``terms.balance``, or what there was where that measured nothing.
    shares, busy: of each stage; of what was balanced, and of time or, untimed, of arithmetic.
    forecast, even: of this cut and of equal layer counts; seconds if ``by`` is time, else parts
        of one microbatch's work.
    largest, largest_share: the layer that takes most: no speed-up can pass 1 / its share.
    stage_bytes: what training each stage holds, estimated.
    """

    terms: Terms
    layers: int
    cuts: Cuts
    names: tuple[str, ...]
    by: str
    shares: tuple[float, ...]
    busy: tuple[float, ...]
    forecast: Forecast
    even: Forecast
    largest: str
    largest_share: float
    stage_bytes: tuple[int, ...]

    def lines(self) -> list[str]:
        """Return what a person should know of it, one fact or a few a line."""
        terms, noun = self.terms, NOUNS[self.by]
        at = ", ".join(map(called, self.cuts, self.names))
        taken = "" if self.by == "time" else f", the {noun} taken for time"
        evenly = f"would give {self.even.speed_up:.2f}x"
        found = [
            f"{_plural(terms.stages, 'stage', 's')} of {self.layers} layers, "
            f"{f'cut before {at}' if at else 'uncut'}: {_listed(map(_percent, self.shares))} of "
            f"the {noun}; {_plural(terms.microbatches, 'microbatch', 'es')}, {terms.schedule}",
            f"expected speed-up {self.forecast.speed_up:.2f}x of one device (bubble "
            f"{_percent(self.forecast.bubble)}{taken}); equal layer counts "
            f"{'give the same' if self.even == self.forecast else evenly}; no cut can pass "
            f"{1 / self.largest_share:.1f}x: layer {self.largest} takes "
            f"{_percent(self.largest_share)}",
        ]
        if self.by != terms.balance:
            found.append(f"balance={terms.balance} measured nothing here: by {noun} instead")
        if terms.memory_limit_gib is not None:
            held = _listed(f"{each / GIB:.3g}" for each in self.stage_bytes)
            found.append(f"estimated memory {held} GiB, limit {terms.memory_limit_gib:g} GiB")
        if self.forecast.speed_up < 1.005:  # it would be printed as 1.00
            found.append("no faster than one device: strategy.name=single, if the model fits it")
        return found


def choose(costs: Sequence[LayerCost], terms: Terms) -> Plan:
    """Return the cut with the cheapest dearest stage that keeps to the memory limit."""
    by, values = _measured(costs, terms.balance)
    seconds = _message_s(costs, terms, by)
    memory, limit = _Memory(costs, terms), terms.memory_limit_gib

    least = dearest(len(costs), terms.stages, memory.held)
    if limit is not None and least > limit * GIB:
        raise UsageError(
            f"no cut of {len(costs)} layers into {terms.stages} stages fits "
            f"strategy.memory_limit_gib={limit:g}: under the best one a stage holds about "
            f"{least / GIB:.3g} GiB; use a higher limit, more stages, smaller microbatches, or "
            "strategy.checkpoint_every"
        )

    def fits(stage: int, a: int, b: int) -> bool:
        return limit is None or memory.held(stage, a, b) <= limit * GIB

    sent = [2 * each for each in seconds]  # there, and the gradient back
    found = [cut(values, terms.stages, messages=each, fits=fits) for each in (sent, None)]
    equal = even(len(costs), terms.stages)
    stages = enumerate(bounds(len(costs), equal))
    if all(fits(stage, a, b) for stage, (a, b) in stages):
        found.append(equal)  # the dearest stage is not all: a first one fills the pipeline
    best = max(found, key=lambda cuts: _forecast(costs, terms, cuts).speed_up)
    return _plan(costs, terms, best)


def given(costs: Sequence[LayerCost], terms: Terms, split: Sequence[int | str]) -> Plan:
    """Return the cut that ``split`` asks for: the first layer of each stage but the first.

    Raises ``UsageError`` where a layer is not there, a stage is empty or holds too much.
    """
    cuts = cuts_of(split, [each.name for each in costs], terms.stages)
    plan = _plan(costs, terms, cuts)
    limit = terms.memory_limit_gib
    for stage, held in enumerate(plan.stage_bytes):
        if limit is not None and held > limit * GIB:
            raise UsageError(
                f"strategy.split={list(split)}: stage {stage} would hold about "
                f"{held / GIB:.3g} GiB, more than strategy.memory_limit_gib={limit:g}; use "
                "strategy.split=auto, or more stages"
            )
    return plan


def _plan(costs: Sequence[LayerCost], terms: Terms, cuts: Cuts) -> Plan:
    by, values = _measured(costs, terms.balance)
    most = max(range(len(costs)), key=values.__getitem__)
    memory = _Memory(costs, terms)
    return Plan(
        terms,
        len(costs),
        cuts,
        names=tuple(costs[at].name for at in cuts),
        by=by,
        shares=shares(values, cuts),
        busy=shares(_measured(costs, "time")[1], cuts),
        forecast=_forecast(costs, terms, cuts),
        even=_forecast(costs, terms, even(len(costs), terms.stages)),
        largest=called(most, costs[most].name),
        largest_share=values[most] / sum(values),
        stage_bytes=tuple(
            memory.held(stage, a, b) for stage, (a, b) in enumerate(bounds(len(costs), cuts))
        ),
    )


def _measured(costs: Sequence[LayerCost], balance: str) -> tuple[str, list[float]]:
    """Return the first measure from ``balance`` on of which there is any, and each layer's part."""
    measures: dict[str, list[float]] = {
        "time": [each.forward_s + each.backward_s for each in costs],
        "flops": [each.flops for each in costs],
        "params": [each.parameters for each in costs],
        "layers": [1] * len(costs),
    }
    if balance not in MEASURES:
        raise UsageError(f"strategy.balance={balance} is not one of {', '.join(MEASURES)}")
    later = list(measures)[list(measures).index(balance) :]
    by = next(each for each in later if sum(measures[each]) or each == "layers")
    return by, measures[by]


def stage_times(costs: Sequence[LayerCost], cuts: Cuts) -> list[tuple[float, float]]:
    """Return each stage's seconds of a microbatch's forward and backward, as measured."""
    return [
        (
            sum(each.forward_s for each in costs[a:b]),
            sum(each.backward_s for each in costs[a:b]),
        )
        for a, b in bounds(len(costs), cuts)
    ]


def _forecast(costs: Sequence[LayerCost], terms: Terms, cuts: Cuts) -> Forecast:
    by, values = _measured(costs, terms.balance)
    if by == "time":
        times = stage_times(costs, cuts)
    else:
        times = [(part / 3, part * 2 / 3) for part in shares(values, cuts)]  # as is usual
    message_s = _message_s(costs, terms, by)
    on_the_way = [message_s[b - 1] for b in cuts]
    return simulate(times, terms.schedule, terms.microbatches, on_the_way, terms.ahead)


def _message_s(costs: Sequence[LayerCost], terms: Terms, by: str) -> list[float]:
    """Return the seconds of one message behind each layer; comparable with measured time alone."""
    if by != "time" or terms.bytes_per_s is None:
        return [0.0] * len(costs)
    return [terms.latency_s + each.out / terms.bytes_per_s for each in costs]


class _Memory:
    """The bytes that training a stage holds, estimated: no kernel's workspace, no allocator's loss.

    parameters + gradient and Adam's two moments of the trained + what it sends
    + microbatches in flight · (what it receives + what its layers keep for the backward)
    """

    def __init__(self, costs: Sequence[LayerCost], terms: Terms) -> None:
        self._fixed = [0, *accumulate(each.parameters + 3 * each.trained for each in costs)]
        self._saved = [0, *accumulate(each.saved for each in costs)]
        self._out = [0, *(each.out for each in costs)]
        self._terms = terms

    def held(self, stage: int, a: int, b: int) -> int:
        terms = self._terms
        flying = in_flight(terms.schedule, terms.stages, stage, terms.microbatches, terms.ahead)
        kept = self._saved[b] - self._saved[a] + self._out[a]
        return self._fixed[b] - self._fixed[a] + self._out[b] + flying * kept


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _plural(count: int, noun: str, ending: str) -> str:
    return f"{count} {noun}{ending if count > 1 else ''}"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
