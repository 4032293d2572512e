"""How long a step should take, from what was measured or counted: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from launch.planning.candidates import Candidate
from launch.planning.pace import Pace, Paces, pace
from parallel.partition import shares
from parallel.pipeline import ModelParallel
from parallel.pipeline.plan import Plan, stage_times
from parallel.pipeline.profile import LayerCost
from parallel.pipeline.schedule import Forecast, simulate

FIRST_BUCKET_BYTES = 2**20  # what DistributedDataParallel sends first, and then
BUCKET_BYTES = 25 * 2**20
HIDDEN = 0.8  # of a GPU's backward: gradients of early layers come too late to be hidden


@dataclass(frozen=True)
class Tolls:
    """What several processes cost beyond their work, in seconds.

    ddp_s, staged_s: each step. block_s: each block that fsdp gathers. microbatch_s:
    each microbatch on each stage. latency_s: a message. ..._per_s: bytes a second of an
    all-reduce, of gathers and scatters, of messages between stages, on one node and else.
    """

    ddp_s: float
    block_s: float
    staged_s: float
    microbatch_s: float
    latency_s: float
    reduced_per_s: float
    gathered_per_s: float
    sent_per_s: float
    inside_per_s: float


@dataclass(frozen=True)
class Costs:
    """All that times are made of.

    alone: of a process while no other computes; together: while all devices do. layers: of one
    microbatch of ``layer_samples``, empty where the model cannot be cut. overlaps: whether
    messages travel beside computation for free, as on GPUs. node: devices of a node.
    """

    alone: Paces
    together: Paces
    tolls: Tolls
    gradient_bytes: int
    blocks: int = 1
    layers: Sequence[LayerCost] = ()
    layer_samples: int = 1
    overlaps: bool = False
    node: int = 1 << 30


@dataclass(frozen=True)
class Estimate:
    """A step; bubble, communication: shares of it. plan: the cut, where there is one."""

    step_s: float
    bubble: float = 0.0
    communication: float = 0.0
    plan: Plan | None = None


def estimate(candidate: Candidate, batch: int, costs: Costs) -> Estimate:
    """Return how long a step of ``candidate`` on a global batch should take."""
    if isinstance(candidate.strategy, ModelParallel):
        return _staged(candidate, candidate.strategy, batch, costs)
    if candidate.devices == 1:
        return Estimate(_work(candidate, batch, costs.alone).step_s)
    if candidate.kind == "fsdp":
        return _sharded(candidate, batch, costs)
    if candidate.kind == "data_parallel":
        return _scattered(candidate, batch, costs)
    own = _work(candidate, batch, costs.together)
    sent = _exposed(reduced_s(costs.gradient_bytes, candidate.replicas, costs.tolls), own, costs)
    return _with(own.step_s, costs.tolls.ddp_s + sent)


def reduced_s(size: int, replicas: int, tolls: Tolls) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes, one message's latency aside.

    Around a ring each rank sends 2 (n - 1) / n of them, in parcels; all but the first cost
    their latency too.
    """
    if replicas < 2:
        return 0.0
    parcels = 1 + max(0, size - FIRST_BUCKET_BYTES) // BUCKET_BYTES
    ring = 2 * (replicas - 1)
    return ring / replicas * size / tolls.reduced_per_s + (parcels - 1) * ring * tolls.latency_s


def _work(candidate: Candidate, batch: int, paces: Paces) -> Pace:
    """Return what one process does itself, round by round."""
    sizes = candidate.sizes(batch)
    rounds = [pace(paces, each) for each in sizes]
    whole = pace(paces, sum(sizes))
    forward_s = sum(each.forward_s for each in rounds)
    backward_s = sum(each.backward_s for each in rounds)
    return Pace(whole.data_s, forward_s, backward_s, whole.update_s)


def _sharded(candidate: Candidate, batch: int, costs: Costs) -> Estimate:
    """Two gathers and a scatter of each block, and a part of the update."""
    own, tolls, parts = _work(candidate, batch, costs.together), costs.tolls, candidate.processes
    moved = 3 * (parts - 1) / parts * costs.gradient_bytes / tolls.gathered_per_s
    sent = _exposed(moved, own, costs) + costs.blocks * tolls.block_s
    return _with(own.step_s - own.update_s * (1 - 1 / parts), sent)


def _scattered(candidate: Candidate, batch: int, costs: Costs) -> Estimate:
    """Each step copies the model to each device, and the gradients back, one after the other."""
    own = pace(costs.together, -(-batch // candidate.devices))
    copied = 2 * (candidate.devices - 1) * costs.gradient_bytes / costs.tolls.sent_per_s
    return _with(own.step_s, copied + candidate.devices * costs.tolls.ddp_s)


def _exposed(sent_s: float, own: Pace, costs: Costs) -> float:
    """Return what of ``sent_s`` the backward does not hide."""
    return max(0.0, sent_s - HIDDEN * own.backward_s) if costs.overlaps else sent_s


def _with(own_s: float, communication_s: float) -> Estimate:
    step_s = own_s + communication_s
    return Estimate(step_s, communication=communication_s / step_s if step_s else 0.0)


def _staged(candidate: Candidate, strategy: ModelParallel, batch: int, costs: Costs) -> Estimate:
    if candidate.stages <= costs.node:
        costs = replace(costs, tolls=replace(costs.tolls, sent_per_s=costs.tolls.inside_per_s))
    sizes, tolls = candidate.sizes(batch), costs.tolls
    layers = _layers(sizes[0], costs)
    plan = strategy.plan(layers, len(sizes), (tolls.latency_s, tolls.sent_per_s))
    each_s = tolls.microbatch_s / 2  # of a forward, and of a backward
    times = [(f + each_s, b + each_s) for f, b in stage_times(layers, plan.cuts)]
    sent = [tolls.latency_s + layers[at - 1].out / tolls.sent_per_s for at in plan.cuts]
    course = strategy.course
    forecast = simulate(times, course.schedule, len(sizes), sent, course.ahead)
    free = simulate(times, course.schedule, len(sizes), ahead=course.ahead)
    whole = pace(costs.together, sum(sizes))
    parts = shares([each.trained for each in layers], plan.cuts)
    shared = reduced_s(int(max(parts) * costs.gradient_bytes), candidate.replicas, tolls)
    if candidate.replicas > 1:
        shared += tolls.ddp_s
    rest = whole.data_s + whole.update_s * max(parts)
    communication_s = forecast.step_s - free.step_s + shared + tolls.staged_s
    step_s = forecast.step_s + shared + tolls.staged_s + rest
    idle = _idle(free, forecast.step_s)
    return Estimate(step_s, idle * forecast.step_s / step_s, communication_s / step_s, plan)


def _idle(free: Forecast, step_s: float) -> float:
    """Return the share of time in which stages have nothing to do, messages aside."""
    return free.bubble * free.step_s / step_s if step_s else 0.0


def _layers(samples: int, costs: Costs) -> list[LayerCost]:
    """Return the layers' costs for a microbatch of ``samples``: parts of its measured time."""
    own, grown = pace(costs.together, samples), samples / costs.layer_samples
    forward_s = sum(each.forward_s for each in costs.layers)
    backward_s = sum(each.backward_s for each in costs.layers)
    return [
        replace(
            each,
            forward_s=each.forward_s / forward_s * own.forward_s if forward_s else 0.0,
            backward_s=each.backward_s / backward_s * own.backward_s if backward_s else 0.0,
            saved=round(each.saved * grown),
            out=round(each.out * grown),
        )
        for each in costs.layers
    ]
