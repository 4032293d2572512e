"""Which ways to train a machine's devices allow: a value each, before anything is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launch.config import Config, build_strategy
from launch.data import check_batch
from parallel import Single, Strategy, UsageError, World

COUNTS = (2, 4, 8, 16)  # microbatches that are tried


@dataclass(frozen=True)
class Candidate:
    """One way to train.

    words: the overrides that ask for it. devices: GPUs, or on a CPU processes with a fair share
    of the cores each. accumulate: rounds that a process divides its part of a batch into.
    problem: why it cannot be, in words; "" if it can.
    """

    name: str
    words: tuple[str, ...]
    devices: int
    processes: int
    strategy: Strategy = field(default_factory=Single)
    accumulate: int = 1
    problem: str = ""

    @property
    def kind(self) -> str:
        """The strategy's name."""
        return self.words[0].partition("=")[2]

    @property
    def replicas(self) -> int:
        """Into how many parts a global batch is divided."""
        return self.strategy.replicas(World(size=self.processes))

    @property
    def rounds(self) -> int:
        """Into how many batches a replica's part is divided."""
        return self.strategy.rounds(self.accumulate)

    @property
    def stages(self) -> int:
        """How many devices a replica of the model is cut over; 1 where it is not cut."""
        return int(getattr(self.strategy, "stages", 1))

    def sizes(self, batch: int) -> list[int]:
        """Return the samples of each round of replica 0, which has most, in a step of ``batch``."""
        own = -(-batch // self.replicas)
        rounds = min(self.rounds, own)
        return [own // rounds + (at < own % rounds) for at in range(rounds)]


Family = tuple[Candidate, ...]  # of which the best is shown


@dataclass(frozen=True)
class Offer:
    """What candidates are made for.

    uncut, undivided: why the task's model cannot be cut into stages, or its parameters not be
    divided at all; "" if they can.
    """

    config: Config
    devices: int
    is_cpu: bool
    uncut: str = ""
    undivided: str = ""


def candidates(offer: Offer, every: bool = False) -> list[Family]:
    """Return the ways for ``offer``; alike ones, of which one is to be chosen, together.

    every: all of them for themselves, and further ones.
    """
    families = list(_families(offer))
    if not every:
        return families
    alone = [(each,) for family in families for each in family]
    return [*alone, *((each,) for each in _further(offer))]


def _families(offer: Offer) -> Iterator[Family]:
    devices = offer.devices
    yield (made(offer, "single", 1, "single"),)
    if devices < 2:
        return
    if not offer.is_cpu:
        way = made(offer, "data_parallel", 1, "data_parallel")
        yield (replace(way, devices=devices),)
    yield (made(offer, "ddp", devices, "ddp"),)
    yield (made(offer, "fsdp", devices, "fsdp"),)
    yield (made(offer, "model_parallel", 2, "model_parallel", stages=2),)
    yield tuple(_pipelines(offer, devices, ""))
    if devices >= 4 and devices % 2 == 0:
        yield tuple(_pipelines(offer, 2, f"{devices // 2}x2 "))


def _further(offer: Offer) -> Iterator[Candidate]:
    devices = offer.devices
    rounds = 2 * offer.config.train.accumulate
    ways = [("single", 1), *([("ddp", devices), ("fsdp", devices)] if devices > 1 else [])]
    for name, processes in ways:
        yield in_rounds(offer, name, processes, rounds)
    if devices > 1:
        yield from _pipelines(offer, devices, "gpipe ", schedule="gpipe")


def _pipelines(offer: Offer, stages: int, prefix: str, **keys: Any) -> Iterator[Candidate]:
    replicas = offer.devices // stages
    own = offer.config.train.global_batch_size // replicas // offer.config.train.accumulate
    for count in [each for each in COUNTS if each <= own] or [1]:
        name = f"{prefix}pipeline m={count}"
        yield made(
            offer, name, offer.devices, "pipeline", stages=stages, microbatches=count, **keys
        )


def in_rounds(offer: Offer, kind: str, processes: int, rounds: int) -> Candidate:
    """Return ``kind`` with its part of a batch divided into ``rounds``."""
    plain = made(offer, f"{kind} accumulate={rounds}", processes, kind)
    words = (*plain.words, f"train.accumulate={rounds}")
    return _checked(offer, replace(plain, words=words, accumulate=rounds))


def made(offer: Offer, name: str, processes: int, kind: str, **keys: Any) -> Candidate:
    """Return one way by name, its strategy and that strategy's keys, and what speaks against it."""
    words = (f"strategy.name={kind}", *(f"strategy.{key}={value}" for key, value in keys.items()))
    bare = Candidate(name, words, processes, processes, accumulate=offer.config.train.accumulate)
    try:
        strategy = build_strategy({**_own(offer.config.strategy, kind), **keys}, processes)
    except UsageError as error:
        return replace(bare, problem=str(error))
    return _checked(offer, replace(bare, strategy=strategy))


def _own(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the configuration's own keys of ``kind``, which stay where its name does."""
    return dict(settings) if settings.get("name") == kind else {"name": kind}


def _checked(offer: Offer, way: Candidate) -> Candidate:
    """Return ``way``, with what speaks against it."""
    if way.problem:
        return way
    is_cut = way.stages > 1
    problem = (offer.uncut if is_cut else "") or (
        offer.undivided if is_cut or way.kind == "fsdp" else ""
    )
    if problem:
        return replace(way, problem=problem)
    try:
        check_batch(offer.config.train.global_batch_size, way.replicas, way.accumulate)
    except UsageError as error:
        return replace(way, problem=str(error))
    return way
