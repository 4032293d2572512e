"""A model at work of whose parameters each process has a slice, gathered block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parallel.agreement import differing, refuse_unlike, refuse_unlike_buffers
from parallel.ddp import took_no_part
from parallel.divergence import Start
from parallel.errors import DisagreementError, UsageError, own_words
from parallel.modes import evaluating, selecting
from parallel.sharded.blocks import find_blocks
from parallel.sharded.holding import deal, slices
from parallel.sharded.keys import Keys
from parallel.sharded.limits import refuse
from parallel.sharded.recompute import recompute
from parallel.sharded.root import (
    Divider,
    Root,
    compute_low,
    divided,
    give_up,
    keep_high,
    own_places,
    reduce_gradients,
)
from parallel.single import Whole
from parallel.strategy import Batch, EngineState, Outcome, Share, StepResult, Work
from parallel.update import Norm, Update

SPARSE = (
    "{name} has sparse gradients, which are not divided over processes; use "
    "torch.nn.Embedding(sparse=False), or strategy.name=ddp"
)
OPTIMIZER = (
    "the optimizer, or what else computes with slices of parameters, cannot: {said}; use an "
    "optimizer of single numbers, such as torch.optim.AdamW, and not fused but for that, or "
    "strategy.name=ddp"
)


class Sharded(Whole):
    """One process's slices of a model, and its share of each global batch."""

    is_split = True
    in_step = True

    def __init__(self, work: Work, keys: Keys) -> None:
        self.keys = keys
        settings = work.settings
        refuse_unlike(work.model, work.world)
        self.blocks = find_blocks(work.model, keys.blocks)
        self._settings = settings
        self.root = Root(work.model, work.objective)
        super().__init__(replace(work, settings=replace(settings, compile=False)))
        self.forward, self.notices = self.root, self.blocks.notices
        if keys.cpu_offload:
            self.update = Update(self.optimizers, settings, torch.device("cpu"))
        if work.world.rank:
            self.update.elsewhere.update(self.points.values())
        self._named = list(self.module.named_parameters())
        self._start = Start(self.module)

    def take(self, model: nn.Module) -> nn.Module:
        """Divide ``model`` over the processes. Collective."""
        refuse(model, self._settings.precision, self.keys, self.blocks, self.world.device)
        self.points = {n: p for n, p in model.named_parameters() if not p.ndim}
        self._used: set[str] = set()  # parameters that had a gradient in this step
        self._select: Callable[[Tensor], Tensor] | None = None
        self._seen: dict[str, Tensor] = {}  # gathered parameters, whose gradients are watched
        divider, blocks = Divider(self.world, self.keys), self.blocks.modules
        if self._settings.compile:
            for part in blocks.values() or [model]:
                part.forward = torch.compile(part.forward)  # hooks stay outside
        every = self.keys.checkpoint_every
        for number, (name, block) in enumerate(blocks.items(), 1):
            if every and not number % every:
                recompute(block, name)
        whole = set(self.points.values())
        if self.keys.mixed_precision:
            compute_low(model)
            for normalisation in keep_high(model):
                divider.divide(normalisation, whole, is_high=True)
        done = divided(model)
        for block in reversed(blocks.values()):  # what is inside comes first
            if block not in done:
                divider.divide(block, whole)
        divider.divide(self.root, whole, is_root=True)
        names = {parameter: name for name, parameter in model.named_parameters()}
        for part in divided(self.root):
            self._watch(part, names)
        return model

    def _watch(self, part: nn.Module, names: Mapping[nn.Parameter, str]) -> None:
        """See the gradients of what ``part`` gathers before they are reduced."""
        places = [(names[parameter], held, at) for held, at, parameter in own_places(part)]

        @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's
        def gathered(*_: Any) -> None:
            for name, module, at in places:
                leaf = module._parameters[at]
                if leaf is not None and leaf.requires_grad and self._seen.get(name) is not leaf:
                    leaf.register_hook(partial(self._receive, name))
                    self._seen[name] = leaf

        part.register_forward_pre_hook(gathered)

    def _receive(self, name: str, gradient: Tensor) -> Tensor:
        """Return what counts of this rank's whole gradient of a parameter."""
        self._used.add(name)
        if gradient.layout != torch.strided:
            raise UsageError(SPARSE.format(name=name))
        return gradient if self._select is None else self._select(gradient)

    def train_step(self, share: Share) -> StepResult:
        """Return what one optimizer step said; see ``Engine``."""
        self._used.clear()
        own, more = len(share.batches), max(0, share.rounds - len(share.batches))
        batches = [*share.batches, *[share.batches[-1]] * more]  # borrowed: others have more
        padded = replace(share, batches=batches, counts=[*share.counts, *[0] * more])
        try:
            result = super().train_step(padded)
        except (RuntimeError, NotImplementedError) as error:
            said = own_words(error)
            if "Sharding propagation failed" in said or "sharding strategy registered" in said:
                said = said.partition(". ")[0].rstrip(".")
                raise UsageError(OPTIMIZER.format(said=said)) from error
            raise
        return replace(result, outcomes=result.outcomes[:own])

    def round(self, last: bool) -> AbstractContextManager[Any]:
        """Reduce in the last round only."""
        reduce_gradients(self.root, last)
        return nullcontext()

    @contextmanager
    def discarding(self, select: Tensor | None, empty: bool) -> Iterator[None]:
        """Make backward add zeros if ``empty``, or where ``select`` is 0; see ``modes``."""
        self._select = selecting(None if empty else select)
        try:
            yield
        finally:
            self._select = None

    def backward_done(self) -> None:
        """Add up the gradients that are not divided; refuse parameters that took no part."""
        unused = [n for n, p in self._named if p.requires_grad and n not in self._used]
        if unused and not self.keys.find_unused_parameters:
            raise UsageError(took_no_part(unused))
        waits = []
        for point in self.points.values():
            if point.requires_grad:
                point.grad = torch.zeros_like(point) if point.grad is None else point.grad
                waits.append(self.world.sum_later(point.grad))
        for wait in waits:
            wait()

    def agree(self, norm: Norm) -> tuple[Norm, Norm | None]:
        """Return the norm over all slices, and what makes weighted sums the mean. Collective."""
        norm, factor = super().agree(norm)
        if self.keys.find_unused_parameters:
            self._forget_unused()
        own = torch.as_tensor(norm, dtype=torch.float64, device=self.world.device)
        whole = self.world.sum(own.square()).sqrt()
        if isinstance(norm, Tensor):
            return whole.to(norm.dtype), factor
        return whole.item(), factor if factor is None else float(factor)

    def _forget_unused(self) -> None:
        """Leave what no rank used without a gradient, as one process does. Collective."""
        trained = [(n, p) for n, p in self._named if p.requires_grad]
        used = torch.tensor([float(n in self._used) for n, _ in trained]).to(self.world.device)
        for (_, parameter), ranks in zip(trained, self.world.sum(used).tolist(), strict=True):
            if not ranks:
                parameter.grad = None

    def evaluate(self, batches: Iterable[tuple[Batch, int]]) -> list[Outcome]:
        """Return what the task says of each batch that is not borrowed; see ``Engine``."""
        self.agree_buffers()
        outcomes = []
        try:
            with evaluating(self.module), self._autocast():
                for batch, count in batches:
                    loss, weight, metrics = self.root(batch, evaluate=True)
                    if count:
                        weight = float(count) if weight is None else weight
                        outcomes.append(Outcome(loss, weight, metrics))
        finally:  # what no backward gives up
            give_up(self.root)
        return outcomes

    def agree_buffers(self) -> None:
        """Make buffers rank 0's on every rank. Collective."""
        self.world.broadcast(list(self.module.buffers()))

    def check_agreement(self, buffers: bool = False) -> None:
        """Compare what is not divided; see ``Engine``."""
        held: dict[str, Tensor] = dict(self.points)
        if buffers:
            refuse_unlike_buffers(self.module, self.world)
            self.agree_buffers()
            held |= dict(self.module.named_buffers())
        found = differing(held, self.world) if held else {}
        if found:
            raise DisagreementError(self._start.explain(self.module, found, self.world))

    def state(self, compare: bool = False) -> EngineState:
        """Return the whole tensors that this rank is to save; see ``Engine``."""
        return deal(super().state(compare), self.module, self.world)

    def load(self, state: EngineState) -> None:
        """Take this rank's slices of ``state``, which has whole tensors; see ``Engine``."""
        super().load(slices(state, self.module))
