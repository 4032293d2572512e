"""The stages of a pipeline one after the other, each without its neighbours, to see their memory.

A stage gets fresh memory in the form that the stage before sent, and keeps what it sends as long
as a real one does; the gradients that come back have the form of what was sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.imagined import stand_in
from parallel.pipeline.engine import Course, Pipelined
from parallel.pipeline.holding import split_layers
from parallel.pipeline.layers import layers, tensors_of
from parallel.pipeline.link import Lines, Links, Receiver, Sender, Under
from parallel.pipeline.mesh import Mesh
from parallel.pipeline.schedule import in_flight
from parallel.pipeline.tree import described, empty, flatten
from parallel.strategy import Rehearsal, Work
from parallel.update import Norm
from parallel.world import World


class Alone(Pipelined):
    """A stage that asks no other about the norm of the gradients."""

    def agree(self, norm: Norm) -> tuple[Norm, Norm | None]:
        """Return the norm of this stage."""
        return norm, None


class Sent(dist.Work):
    """What is sent at once, and not given back before it is waited for."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True


class Outbox(Sender):
    """Sends to nobody, and adds the form of each value to ``forms``."""

    def __init__(self, lines: Lines, ahead: int, forms: list[Any]) -> None:
        super().__init__(lines, 0, ahead)
        self.forms = forms

    def send(self, value: Any) -> None:
        """Keep ``value`` as if it were under way."""
        self.forms.append(flatten(value)[1])
        super().send(value)

    def _start(self, world: World, tensor: Tensor, tag: int) -> None:
        self._now.append((Sent(), tensor))


class Inbox(Receiver):
    """Receives fresh memory in the next of ``forms``, which are known by then."""

    def __init__(self, lines: Lines, device: torch.device, forms: list[Any]) -> None:
        super().__init__(lines, 0, device)
        self.forms, self._next = forms, 0
        self._numbers: dict[str, int] = {}

    def _number(self) -> int:
        form = self.form(self.forms[self._next])
        self._next += 1
        number = self._numbers.setdefault(json.dumps(form), len(self._numbers))
        self._forms[number] = form
        return number

    def form(self, sent: Any) -> Any:
        """Return the form of what comes, of what was sent."""
        return sent

    def _ask(self, tensor: Tensor, tag: int) -> Under:
        return None, tensor

    def _post(self, number: int) -> tuple[list[Tensor], list[Under]]:
        return empty(self._forms[number], self.device), []


class Gradients(Inbox):
    """Receives what comes back for the next of ``forms``: its tensors that require gradients."""

    def form(self, sent: Any) -> Any:
        """Return the form of the gradients."""
        return [{"tensor": [d, s, False]} for d, s, requires in described(sent) if requires]


def devices(work: Work, cuts: Sequence[int], course: Course) -> Rehearsal:
    """Yield each stage at work; the one before has trained by then, so often as this one will."""
    found, forms = layers(work.model), list[Any]()  # forms: what the stage before sent
    for stage in range(len(cuts) + 1):
        mesh = Mesh(replace(work.world, rank=stage), len(cuts) + 1)
        own = {t for layer in split_layers(found, cuts)[stage] for t in tensors_of(layer)}
        model = stand_in(work.model, work.settings.precision, own.__contains__)
        here, sent = replace(work, model=model, world=mesh.world), list[Any]()
        links = _links(mesh, course, forms, sent)
        yield Alone(here, split_layers(layers(model), cuts), course, links)
        forms = sent


def _links(mesh: Mesh, course: Course, received: list[Any], sent: list[Any]) -> Links:
    ahead = 1 + in_flight(course.schedule, mesh.stages, mesh.stage, course.microbatches)
    world = mesh.world
    lines = Lines(world, world)
    return Links(
        inputs=None if mesh.is_first else Inbox(lines, world.device, received),
        outputs=None if mesh.is_last else Outbox(lines, ahead, sent),
        gradients=None if mesh.is_last else Gradients(lines, world.device, sent),
        back=None if mesh.is_first else Outbox(lines, ahead, []),
    )
