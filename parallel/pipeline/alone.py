"""The stages of a pipeline one after the other, each without its neighbours, to see their memory.

A stage gets fresh memory in the form that the stage before sent, and keeps what it sends as long
as a real one does; the gradients that come back have the form of what was sent. A process has no
memory for a message until it comes; on its way while the stage computes are those of stages that
are as fast, not those that the stage waits for.
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
from parallel.pipeline.tree import described, empty, flatten
from parallel.strategy import Rehearsal, Work
from parallel.update import Norm
from parallel.world import World

DEARER = 1.1  # as much work as a stage's own: nearer ones may be as fast


class Alone(Pipelined):
    """A stage that asks no other about the norm of the gradients."""

    inboxes: Sequence[Inbox] = ()

    def awaited(self) -> int:
        """Return the bytes asked for ahead, of messages that the stage waits for."""
        return sum(each.awaited for each in self.inboxes)

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
    """Receives fresh memory in the next of ``forms``, which are known by then.

    is_waited_for: whether messages come later than the stage could use them.
    """

    def __init__(
        self, lines: Lines, device: torch.device, forms: list[Any], *, is_waited_for: bool
    ) -> None:
        super().__init__(lines, 0, device)
        self.forms, self.is_waited_for, self._next = forms, is_waited_for, 0
        self._numbers: dict[str, int] = {}

    @property
    def awaited(self) -> int:
        """The bytes that are asked for, if the stage waits for them."""
        asked = self._posted[0] if self._posted and self.is_waited_for else []
        return sum(int(tensor.nbytes) for tensor in asked)

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


def devices(work: Work, cuts: Sequence[int], busy: Sequence[float], course: Course) -> Rehearsal:
    """Yield each stage at work; the one before has trained by then, so often as this one will.

    busy: each stage's part of the work: whose is dearer is waited for.
    """
    found, forms = layers(work.model), list[Any]()  # forms: what the stage before sent
    for stage in range(len(cuts) + 1):
        mesh = Mesh(replace(work.world, rank=stage), len(cuts) + 1)
        own = {t for layer in split_layers(found, cuts)[stage] for t in tensors_of(layer)}
        model = stand_in(work.model, work.settings.precision, own.__contains__)
        here, sent = replace(work, model=model, world=mesh.world), list[Any]()
        links = _links(mesh, busy, course, forms, sent)
        engine = Alone(here, split_layers(layers(model), cuts), course, links)
        engine.inboxes = [
            each for each in (links.inputs, links.gradients) if isinstance(each, Inbox)
        ]
        yield engine
        forms = sent


def _links(
    mesh: Mesh, busy: Sequence[float], course: Course, received: list[Any], sent: list[Any]
) -> Links:
    ahead, world = 1 + course.in_flight(mesh), mesh.world
    lines, own = Lines(world, world), mesh.stage

    def inbox(kind: type[Inbox], forms: list[Any], others: Sequence[float]) -> Inbox:
        late = course.microbatches == 1 or max(others) > DEARER * busy[own]
        return kind(lines, world.device, forms, is_waited_for=late)

    return Links(
        inputs=None if mesh.is_first else inbox(Inbox, received, busy[:own]),
        outputs=None if mesh.is_last else Outbox(lines, ahead, sent),
        gradients=None if mesh.is_last else inbox(Gradients, sent, busy[own + 1 :]),
        back=None if mesh.is_first else Outbox(lines, ahead, []),
    )
