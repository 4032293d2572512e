"""Next-byte prediction on a text file by a small transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from launch.config import ConfigError, key
from launch.task import Loss, Task
from parallel import Batch

BYTES = 256


@dataclass
class Text(Task):
    """Which byte comes next? The last ``valid_share`` of the text judges the model.

    A batch is one tensor: windows of bytes [n, context + 1], int64. Each window's last byte is
    the next one's first, so that an epoch predicts each byte once.
    """

    path: str | None = key(None, "any file; null: the help texts that come with Python")
    width: int = key(96, "numbers that stand for a byte; a multiple of heads", at_least=1)
    layers: int = key(3, "transformer blocks", at_least=0)
    heads: int = key(4, "attention heads of a block", at_least=1)
    context: int = key(64, "bytes the model sees", at_least=1)
    dropout: float = key(0.0, "share of numbers left out in training", at_least=0)
    valid_share: float = key(0.1, "part of the text, its end, that judges the model", at_least=0)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                f"task.width={self.width} cannot be shared by task.heads={self.heads}; "
                f"use task.width={self.heads * max(1, self.width // self.heads)}"
            )
        for name, share in (("valid_share", self.valid_share), ("dropout", self.dropout)):
            if not 0 <= share < 1:
                raise ConfigError(
                    f"task.{name}={share}: wanted a part from 0 to below 1, such as 0.1"
                )

    def datasets(self) -> Mapping[str, Dataset[Tensor]]:
        """Return the beginning of the text for training and its end as "valid"."""
        text, name = (_python_help(), "Python's help") if self.path is None else _read(self.path)
        cut = len(text) - round(len(text) * self.valid_share)
        parts = {"train": text[:cut]} | ({"valid": text[cut:]} if self.valid_share else {})
        if min(map(len, parts.values())) <= self.context:
            sizes = " and ".join(f"{len(part)} for {split}" for split, part in parts.items())
            raise ConfigError(
                f"{name} is too short: of its {len(text)} bytes there are {sizes}, and a window "
                f"is {self.context + 1}; use a longer file, or a smaller task.context"
            )
        return {split: Windows(part, self.context) for split, part in parts.items()}

    def model(self) -> nn.Sequential:
        """Return layers from bytes [n, t] to logits [n, t, 256] that can be cut anywhere."""
        blocks = [Block(self.width, self.heads, self.dropout) for _ in range(self.layers)]
        return nn.Sequential(
            Embedding(self.width, self.context),
            *blocks,
            nn.LayerNorm(self.width),
            nn.Linear(self.width, BYTES),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the cross entropy in nats a byte, and in bits."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def inputs(self, batch: Batch) -> Tensor:
        """Return all but the last byte [n, t] of each window."""
        windows: Tensor = batch
        return windows[:, :-1]

    def loss_of_outputs(self, outputs: Tensor, batch: Batch) -> Loss:
        """Return the same from the logits [n, t, 256]. Windows are equally long: no weight."""
        loss = functional.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())
        return {"loss": loss, "bits_per_byte": loss.detach() / math.log(2)}


class Windows(Dataset[Tensor]):
    """Stretches of ``context + 1`` bytes that overlap by one."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8), context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        """Return a ready batch [n, context + 1]."""
        starts = torch.as_tensor(indices).unsqueeze(1) * self.context
        return self.text[starts + torch.arange(self.context + 1)].long()


class Embedding(nn.Module):
    """Bytes [n, t] to vectors [n, t, width] that know their place."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)

    def forward(self, text: Tensor) -> Tensor:
        """Return the sum of what a byte is and where it stands."""
        vectors: Tensor = self.bytes(text) + self.places[: text.shape[1]]
        return vectors


class Block(nn.Module):
    """Attention to what came before, then a layer of each place's own, both added on."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [n, t, width] of the same shape."""
        vectors = vectors + self._attend(self.before_attention(vectors))
        changed: Tensor = vectors + self.layer(self.before_layer(vectors))
        return changed

    def _attend(self, vectors: Tensor) -> Tensor:
        split = self.queries_keys_values(vectors).unflatten(2, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [n, heads, t, width / heads]
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
        out: Tensor = functional.dropout(
            self.attended(seen.transpose(1, 2).flatten(2)), self.dropout, self.training
        )
        return out


def _read(path: str) -> tuple[bytes, str]:
    try:
        return Path(path).expanduser().read_bytes(), path
    except OSError as error:
        raise ConfigError(
            f"task.path={path} cannot be read ({error.strerror}); give the path of any file of "
            "text, or leave it out for Python's own help"
        ) from None


def _python_help() -> bytes:
    """Return the language reference behind ``help()``, about 460 kB; it differs by version."""
    try:
        from pydoc_data.topics import topics  # half a megabyte that only this default needs
    except ImportError:
        raise ConfigError(
            "this Python comes without its help texts; give any file of text: task.path=FILE"
        ) from None
    return "".join(topics[name] for name in sorted(topics)).encode()
