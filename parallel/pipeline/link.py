"""One direction between two neighbouring stages: whatever is sent describes itself.

    header   [2] int64: what it is, and how long its description is
    form     JSON, only where it is another one than the last message's (another batch size, dtype)
    tensors  one after the other, as bytes

So a batch may have any size, and a stage may return anything that ``tree`` takes apart.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.pipeline.mesh import Mesh
from parallel.pipeline.tree import empty, flatten, unflatten
from parallel.world import World

NOTHING, AS_BEFORE, DESCRIBED = range(3)
HEADER, FORM, TENSORS = range(3)  # tags, so that messages of one kind only ever meet their own


@dataclass(frozen=True)
class Lines:
    """The groups that one direction uses: headers are read by the CPU, tensors by the device."""

    headers: World
    tensors: World


class Sender:
    """Sends to rank ``peer``; ``ahead``: how many messages may be under way before it waits."""

    def __init__(self, lines: Lines, peer: int, ahead: int) -> None:
        self.lines, self.peer, self.ahead = lines, peer, ahead
        self._text = ""  # of the last form: in Python 1, 1.0 and True are equal
        self._under_way: deque[list[tuple[dist.Work, Tensor]]] = deque()
        self._now: list[tuple[dist.Work, Tensor]] = []

    def send(self, value: Any) -> None:
        """Start sending ``value``; its tensors must not be written to any more."""
        tensors, form = flatten(value)
        text = json.dumps(form)
        if text == self._text:
            self._header(AS_BEFORE, 0)
        else:
            self._text = text
            described = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
            self._header(DESCRIBED, len(described))
            self._start(self.lines.headers, described, FORM)
        for tensor in tensors:
            if tensor.numel():
                plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
                self._start(self.lines.tensors, plain.reshape(-1).view(torch.uint8), TENSORS)
        self._close()

    def send_nothing(self) -> None:
        """Say that there is nothing to send this time."""
        self._header(NOTHING, 0)
        self._close()

    def settle(self, ahead: int = 0) -> None:
        """Wait until no more than ``ahead`` messages are under way."""
        while len(self._under_way) > ahead:
            for work, _ in self._under_way.popleft():
                work.wait()

    def _header(self, kind: int, length: int) -> None:
        self._start(self.lines.headers, torch.tensor([kind, length]), HEADER)

    def _start(self, world: World, tensor: Tensor, tag: int) -> None:
        work = dist.isend(tensor, group=world.group, group_dst=self.peer, tag=tag)
        if work is not None:  # None: this rank is not of the group, which cannot be
            self._now.append((work, tensor))  # its memory must stay until it is sent

    def _close(self) -> None:
        self._under_way.append(self._now)
        self._now = []
        self.settle(self.ahead)


class Receiver:
    """Receives from rank ``peer`` what its ``Sender`` sends, in that order."""

    def __init__(self, lines: Lines, peer: int, device: torch.device) -> None:
        self.lines, self.peer, self.device = lines, peer, device
        self._form: Any = None

    def receive(self) -> tuple[Any, list[Tensor]] | None:
        """Return the form of the next value, and its tensors on the device; None for nothing."""
        header = torch.empty(2, dtype=torch.int64)
        self._wait(self.lines.headers, header, HEADER)
        kind, length = header.tolist()
        if kind == NOTHING:
            return None
        if kind == DESCRIBED:
            text = torch.empty(length, dtype=torch.uint8)
            self._wait(self.lines.headers, text, FORM)
            self._form = json.loads(bytes(text.tolist()))
        tensors = empty(self._form, self.device)
        works = [
            dist.irecv(
                tensor.reshape(-1).view(torch.uint8),
                group=self.lines.tensors.group,
                group_src=self.peer,
                tag=TENSORS,
            )
            for tensor in tensors
            if tensor.numel()
        ]
        for work in works:
            if work is not None:
                work.wait()
        return self._form, tensors

    def value(self) -> Any:
        """Return the next value, put together."""
        received = self.receive()
        return None if received is None else unflatten(*received)

    def _wait(self, world: World, tensor: Tensor, tag: int) -> None:
        dist.recv(tensor, group=world.group, group_src=self.peer, tag=tag)


@dataclass(frozen=True)
class Links:
    """A stage's connections; None where it has no neighbour on that side.

    inputs and back: with the stage before. outputs and gradients: with the one behind.
    """

    inputs: Receiver | None
    outputs: Sender | None
    gradients: Receiver | None
    back: Sender | None

    def settle(self) -> None:
        """Wait until everything is sent."""
        for sender in (self.outputs, self.back):
            if sender is not None:
                sender.settle()


def connect(mesh: Mesh, ahead: int) -> Links:
    """Return this stage's links to its neighbours; ahead: see ``Sender``. Collective.

    NCCL knows no tags, and what is sent both ways between two ranks at once would wait for each
    other: each direction has a group of its own there, and headers one of gloo's.
    """
    world, rank = mesh.world, mesh.world.rank
    forward = back = Lines(world, world)
    if world.backend == "nccl":
        everyone = [range(world.size)]
        headers = world.among(everyone, "gloo")
        forward = Lines(headers, world.among(everyone))
        back = Lines(headers, world.among(everyone))
    before, behind = not mesh.is_first, not mesh.is_last
    return Links(
        inputs=Receiver(forward, rank - 1, world.device) if before else None,
        outputs=Sender(forward, rank + 1, ahead) if behind else None,
        gradients=Receiver(back, rank + 1, world.device) if behind else None,
        back=Sender(back, rank - 1, ahead) if before else None,
    )
