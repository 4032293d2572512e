"""Data parallel: every process holds the whole model and its share of each global batch."""

from __future__ import annotations

import math
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from parallel.agreement import differing, listed, refuse_unlike, refuse_unlike_buffers
from parallel.buckets import Bucketed
from parallel.divergence import Start
from parallel.errors import DisagreementError, UsageError, own_words
from parallel.imagined import stand_in
from parallel.single import Whole
from parallel.strategy import Engine, Rehearsal, Share, StepResult, Strategy, Work
from parallel.world import World


class Replica(Whole):
    """One whole model among ``world.size``, its gradients averaged by torch's wrapper."""

    def __init__(self, work: Work, strategy: DDP) -> None:
        refuse_unlike(work.model, work.world)
        super().__init__(work)
        self.replicas = self.world.size
        self._find_unused = strategy.find_unused_parameters
        self._trainable = [p for p in self.module.parameters() if p.requires_grad]
        self._start = Start(self.module)
        if self._trainable:
            self.wrapped = self._wrap(strategy)
            self.forward = self.wrapped
            self._trainable[0].register_post_accumulate_grad_hook(self._own_backward_done)
        else:  # torch refuses to wrap what is only judged; its values are rank 0's all the same
            self.world.broadcast([*self.module.parameters(), *self.module.buffers()])

    def _wrap(self, strategy: DDP) -> DistributedDataParallel:
        return DistributedDataParallel(
            self.forward,
            bucket_cap_mb=strategy.bucket_mb,
            find_unused_parameters=strategy.find_unused_parameters,
            gradient_as_bucket_view=True,
            forward_sync_buffers=_buffers_enter_the_math(self.module),
        )

    def train_step(self, share: Share) -> StepResult:
        """Return the sums of one optimizer step; see ``Engine``."""
        try:
            return super().train_step(share)
        except RuntimeError as error:
            said = own_words(error)
            if "finished reduction in the prior iteration" in said:
                indices = re.findall(r"rank \d+: ([\d ]+)", said)
                raise UsageError(took_no_part(_at(self.module, indices))) from None
            raise

    def round(self, last: bool) -> AbstractContextManager[Any]:
        """Reduce in the last round only: forward and backward in one context."""
        return nullcontext() if last or not self._trainable else self.wrapped.no_sync()

    def agree_buffers(self) -> None:
        """Make buffers rank 0's on every rank. Collective."""
        self.world.broadcast(list(self.module.buffers()))

    def check_agreement(self, buffers: bool = False) -> None:
        """Compare the replicas, bit for bit; see ``Engine``."""
        held: dict[str, Tensor] = dict(self.module.named_parameters())
        if buffers:
            refuse_unlike_buffers(self.module, self.world)
            self.agree_buffers()
            held |= dict(self.module.named_buffers())
        found = differing(held, self.world)
        if found:
            raise DisagreementError(self._start.explain(self.module, found, self.world))

    def backward_done(self) -> None:
        """Refuse parameters that took no part: torch would let the ranks drift apart."""
        self.tail = "backward"
        if self._find_unused or all(p.grad is not None for p in self._trainable):
            return
        unused = [
            n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None
        ]
        raise UsageError(took_no_part(unused or ["a parameter that was replaced after the start"]))

    def _own_backward_done(self, _: Tensor) -> None:
        """The first parameter's gradient comes last: from here backward waits for the others."""
        self.phases.end("backward")
        self.tail = "communication"


@dataclass(frozen=True)
class DDP(Strategy):
    """Replicate the model; torch's DistributedDataParallel averages the gradients."""

    bucket_mb: float = 25.0  # gradients are sent in parcels of this size
    find_unused_parameters: bool = False
    sync_batch_norm: bool = False  # batch statistics over all processes; GPUs only

    def __post_init__(self) -> None:
        if not 0 < self.bucket_mb < math.inf:
            raise UsageError(
                f"strategy.bucket_mb: wanted a size in MB above 0, met {self.bucket_mb:g}; the "
                "default is strategy.bucket_mb=25"
            )

    def replicas(self, world: World) -> int:
        """Return the number of processes: each is a replica."""
        return world.size

    def start(self, work: Work) -> Engine:
        """Return this process's replica; in a world of one, the model alone."""
        notices, world = [], work.world
        if self.sync_batch_norm and world.device.type == "cuda" and world.size > 1:
            work = replace(work, model=nn.SyncBatchNorm.convert_sync_batchnorm(work.model))
        elif self.sync_batch_norm:
            notices = ["strategy.sync_batch_norm needs several GPUs; it is ignored here"]
        engine = Whole(work) if world.size == 1 else Replica(work, self)
        engine.notices = notices
        return engine

    def rehearse(self, work: Work) -> Rehearsal:
        """Yield one replica: they are all alike."""
        model = stand_in(work.model, work.settings.precision)
        kind = Whole if work.world.size == 1 else Bucketed
        yield kind(replace(work, model=model))


def _buffers_enter_the_math(module: nn.Module) -> bool:
    """Whether training reads a buffer: all but the running statistics of normalisation.

    Only then must buffers be made alike before each forward, which costs a collective each time.
    """
    running = {
        id(b) for part in module.modules() if isinstance(part, _NormBase) for b in part.buffers()
    }
    return any(id(buffer) not in running for buffer in module.buffers())


def _at(module: nn.Module, indices: list[str]) -> list[str]:
    """Return the names that torch's message gives by their number among the trainable."""
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    return [names[int(i)] for text in indices for i in text.split() if int(i) < len(names)]


def took_no_part(names: list[str]) -> str:
    """Return what is said of parameters that had no gradient."""
    return (
        f"these parameters took no part in the loss: {listed(names)}; "
        "freeze or remove them, or set strategy.find_unused_parameters=true"
    )
