"""One direction between two neighbouring stages: whatever is sent describes itself.

    header   [2] int64: the number of its form (-1: there is nothing), and how long that is if new
    form     JSON, only where it is new (another batch size, another dtype)
    tensors  one after the other, as bytes, under a tag of their form

So a batch may have any size, and a stage may return anything that ``tree`` takes apart. After two
messages of one form a third is expected: its tensors are asked for before they are sent. Where
another form comes, tensors of the expected one are sent all the same, and thrown away.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.pipeline.mesh import Mesh
from parallel.pipeline.tree import empty, flatten, unflatten
from parallel.world import World

NOTHING = -1
HEADER, FORM, TENSORS = range(3)  # tags; a form's tensors have TENSORS + its number
KNOWN = 64  # forms that both sides remember; what is older is described again

Under = tuple[dist.Work | None, Tensor]  # way: None where this rank is not of the group


@dataclass(frozen=True)
class Lines:
    """The groups that one direction uses: headers are read by the CPU, tensors by the device."""

    headers: World
    tensors: World


class Expected:
    """Which form the next message should have, as both sides guess it: that of the last two."""

    def __init__(self) -> None:
        self.number, self.sizes = NOTHING, list[int]()
        self._last = NOTHING

    def take(self, number: int, sizes: list[int]) -> None:
        """Take in a message: its form, and the bytes of its tensors."""
        is_again = number == self._last
        self.number, self.sizes = (number, sizes) if is_again else (NOTHING, [])
        self._last = number


class Sender:
    """Sends to rank ``peer``; ``ahead``: how many messages may be under way before it waits."""

    def __init__(self, lines: Lines, peer: int, ahead: int) -> None:
        self.lines, self.peer, self.ahead = lines, peer, ahead
        self._numbers: dict[str, int] = {}  # by text: in Python 1, 1.0 and True are equal
        self._new = 0
        self._expected = Expected()
        self._under_way: deque[list[Under]] = deque()
        self._now: list[Under] = []

    def send(self, value: Any) -> None:
        """Start sending ``value``; its tensors must not be written to any more."""
        tensors, form = flatten(value)
        number = self._describe(json.dumps(form))
        self._fill(number)
        flat = []
        for tensor in [tensor for tensor in tensors if tensor.numel()]:
            plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
            flat.append(plain.reshape(-1).view(torch.uint8))
            self._start(self.lines.tensors, flat[-1], TENSORS + number)
        self._close(number, [len(data) for data in flat])

    def send_nothing(self) -> None:
        """Say that there is nothing to send this time."""
        self._header(NOTHING, 0)
        self._fill(NOTHING)
        self._close(NOTHING, [])

    def settle(self, ahead: int = 0) -> None:
        """Wait until no more than ``ahead`` messages are under way."""
        while len(self._under_way) > ahead:
            _wait(self._under_way.popleft())

    def _describe(self, form: str) -> int:
        """Say which form comes, and what it is if that is new; return its number."""
        number = self._numbers.get(form)
        if number is not None:
            self._header(number, 0)
            return number
        number, self._new = self._new, self._new + 1
        self._numbers[form] = number
        if len(self._numbers) > KNOWN:
            del self._numbers[next(iter(self._numbers))]
        text = torch.frombuffer(bytearray(form.encode()), dtype=torch.uint8)
        self._header(number, len(text))
        self._start(self.lines.headers, text, FORM)
        return number

    def _header(self, number: int, length: int) -> None:
        self._start(self.lines.headers, torch.tensor([number, length]), HEADER)

    def _start(self, world: World, tensor: Tensor, tag: int) -> None:
        work = dist.isend(tensor, group=world.group, group_dst=self.peer, tag=tag)
        self._now.append((work, tensor))  # its memory must stay until it is sent

    def _fill(self, number: int) -> None:
        """Send tensors of the expected form, if this message has another."""
        expected = self._expected
        if expected.number not in (NOTHING, number):
            for size in expected.sizes:
                nothing = torch.empty(size, dtype=torch.uint8, device=self.lines.tensors.device)
                self._start(self.lines.tensors, nothing, TENSORS + expected.number)

    def _close(self, number: int, sizes: list[int]) -> None:
        self._expected.take(number, sizes)
        self._under_way.append(self._now)
        self._now = []
        self.settle(self.ahead)


class Receiver:
    """Receives from rank ``peer`` what its ``Sender`` sends, in that order.

    posts_ahead: whether it asks for what is expected before it is sent.
    """

    posts_ahead = False

    def __init__(self, lines: Lines, peer: int, device: torch.device) -> None:
        self.lines, self.peer, self.device = lines, peer, device
        self._forms: dict[int, Any] = {}
        self._expected = Expected()
        self._header: Under | None = None  # asked for
        self._posted: tuple[list[Tensor], list[Under]] | None = None  # the same

    def receive(self) -> tuple[Any, list[Tensor]] | None:
        """Return the form of the next value, and its tensors on the device; None for nothing."""
        expected = self._expected.number
        asked = self._posted or (None if expected == NOTHING else self._post(expected))
        number = self._number()
        if asked is not None:
            _wait(asked[1])
        if number == NOTHING:
            asked = [], []
        elif number != expected or asked is None:
            asked = self._post(number)
            _wait(asked[1])
        tensors, under_way = asked
        self._expected.take(number, [len(data) for _, data in under_way])
        self._ask_ahead()
        return None if number == NOTHING else (self._forms[number], tensors)

    def _ask_ahead(self) -> None:
        expected = self._expected.number
        is_due = self.posts_ahead and expected != NOTHING
        self._posted = self._post(expected) if is_due else None
        if self.posts_ahead:
            self._header = self._ask(torch.empty(2, dtype=torch.int64), HEADER)

    def value(self) -> Any:
        """Return the next value, put together."""
        received = self.receive()
        return None if received is None else unflatten(*received)

    def _number(self) -> int:
        """Return which form comes next, once it is known here."""
        asked = self._header or self._ask(torch.empty(2, dtype=torch.int64), HEADER)
        _wait([asked])
        number, length = (int(each) for each in asked[1].tolist())
        if length:
            asked = self._ask(torch.empty(length, dtype=torch.uint8), FORM)
            _wait([asked])
            self._forms[number] = json.loads(bytes(asked[1].tolist()))
            if len(self._forms) > KNOWN:
                del self._forms[next(iter(self._forms))]
        self._header = None
        return number

    def _ask(self, tensor: Tensor, tag: int) -> Under:
        group = self.lines.headers.group
        return dist.irecv(tensor, group=group, group_src=self.peer, tag=tag), tensor

    def _post(self, number: int) -> tuple[list[Tensor], list[Under]]:
        """Ask for the tensors of a form; return them, and what to wait for."""
        tensors, group = empty(self._forms[number], self.device), self.lines.tensors.group
        flat = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
        tag = TENSORS + number
        return tensors, [
            (dist.irecv(data, group=group, group_src=self.peer, tag=tag), data) for data in flat
        ]


def _wait(asked: Sequence[Under]) -> None:
    for work, _ in asked:
        if work is not None:
            work.wait()


@dataclass(frozen=True)
class Links:
    """A stage's connections; None where it has no neighbour on that side.

    inputs and back: with the stage before. outputs and gradients: with the one behind.
    """

    inputs: Receiver | None
    outputs: Sender | None
    gradients: Receiver | None
    back: Sender | None

    def post_ahead(self) -> None:
        """Ask for messages before they are sent: over gloo alone, as NCCL would wait for them."""
        for receiver in (self.inputs, self.gradients):
            if receiver is not None:
                receiver.posts_ahead = receiver.lines.tensors.backend != "nccl"

    def settle(self) -> None:
        """Wait until everything is sent."""
        for sender in (self.outputs, self.back):
            if sender is not None:
                sender.settle()


def connect(mesh: Mesh, ahead: int) -> Links:
    """Return this stage's links to its neighbours; ahead: see ``Sender``. Collective.

    They have groups of their own: what is asked for ahead must meet no other's messages. NCCL
    knows no tags, and what is sent both ways between two ranks at once would wait for each other:
    there each direction has a group, and headers one of gloo's.
    """
    world, rank, everyone = mesh.world, mesh.world.rank, [range(mesh.world.size)]
    headers = world.among(everyone, "gloo")
    forward = back = Lines(headers, headers)
    if world.backend == "nccl":
        forward = Lines(headers, world.among(everyone))
        back = Lines(headers, world.among(everyone))
    before, behind = not mesh.is_first, not mesh.is_last
    return Links(
        inputs=Receiver(forward, rank - 1, world.device) if before else None,
        outputs=Sender(forward, rank + 1, ahead) if behind else None,
        gradients=Receiver(back, rank + 1, world.device) if behind else None,
        back=Sender(back, rank - 1, ahead) if before else None,
    )
