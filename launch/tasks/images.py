"""A folder of the user's own pictures: give them back, or tell their folders apart."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from launch.config import ConfigError, key
from launch.task import Loss, Task
from launch.tasks.metrics import accuracy, psnr
from launch.tasks.pictures import Pictures, find_pictures, held_out, why_unreadable
from parallel import Batch

TARGETS, UNREADABLE = ("reconstruction", "class"), ("list", "fail")
PATCH = 8  # pixels that the first convolution of the autoencoder takes together
LATENT = 16  # numbers that are left of a patch's 192
log = logging.getLogger("launch")


@dataclass
class Images(Task):
    """Learn from the pictures in ``folder``, whatever their kind and size.

    ``target: reconstruction`` squeezes each picture to a twelfth of its numbers and back;
    ``target: class`` tells in which first-level subfolder a picture lies. A batch is (pictures
    [n, 3, size, size] from 0 to 1) or (pictures, labels [n]).
    """

    folder: str = field(metadata={"help": "where the pictures are, at any depth"})
    target: str = key("reconstruction", "what is learnt", choices=TARGETS)
    size: int = key(64, "pixels of a side: the shorter is scaled, the longer cut", at_least=PATCH)
    valid_share: float = key(0.1, "part of the pictures that judges the model", at_least=0)
    unreadable: str = key("list", "name broken pictures and go on, or fail", choices=UNREADABLE)
    augment: bool = key(False, "mirror half of the pictures while training")
    width: int = key(48, "channels", at_least=2)

    def __post_init__(self) -> None:
        _want("target", self.target, TARGETS)
        _want("unreadable", self.unreadable, UNREADABLE)
        _want_folder(self.folder)
        if self.size < PATCH or self.size % PATCH:
            raise ConfigError(
                f"task.size={self.size}: wanted a multiple of {PATCH}; "
                f"use task.size={max(PATCH, round(self.size / PATCH) * PATCH)}"
            )
        if not 0 <= self.valid_share < 1:
            raise ConfigError(
                f"task.valid_share={self.valid_share}: wanted a part from 0 to below 1, such as 0.1"
            )

    def prepare(self) -> None:
        """Look at each file's beginning; name those that are no pictures in one warning."""
        names, reasons = self._names, self._found[1]
        if reasons:
            log.warning("%s; they are left out, %d remain", _listed(reasons), len(names))

    def datasets(self) -> Mapping[str, Dataset[tuple[Tensor, ...]]]:
        """Return pictures by "train" and "valid"; a picture's side depends on its path alone."""
        names = self._names
        valid = held_out(names, self.valid_share)
        splits = {"train": [n for n in names if n not in valid], "valid": sorted(valid)}
        return {
            split: Pictures(
                Path(self.folder).expanduser(),
                members,
                self.size,
                labels=self._labels(members) if self.target == "class" else None,
                mirror=self.augment and split == "train",
            )
            for split, members in splits.items()
            if members
        }

    def model(self) -> nn.Sequential:
        """Return layers from pictures to pictures, or to one number a class."""
        if self.target == "class":
            return classifier(self.width, len(self.classes))
        return autoencoder(self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Return the squared error and the PSNR in dB, or the cross entropy and the accuracy."""
        return self.loss_of_outputs(model(self.inputs(batch)), batch)

    def loss_of_outputs(self, outputs: Tensor, batch: Batch) -> Loss:
        """Return the same from the outputs [n, 3, size, size] or [n, classes]."""
        if self.target == "class":
            labels = batch[1]
            loss = functional.cross_entropy(outputs, labels)
            return {"loss": loss, "accuracy": accuracy(outputs, labels)}
        return {"loss": functional.mse_loss(outputs, batch[0]), "psnr": psnr(outputs, batch[0])}

    @cached_property
    def classes(self) -> list[str]:
        """The first-level subfolders that hold pictures, sorted: a label is an index of this."""
        return sorted({name.split("/")[0] for name in self._names})

    def _labels(self, names: list[str]) -> list[int]:
        return [self.classes.index(name.split("/")[0]) for name in names]

    @cached_property
    def _names(self) -> list[str]:
        """Return the pictures the target can use. Raises ``ConfigError`` if too few."""
        names, reasons = self._found
        if reasons and self.unreadable == "fail":
            raise ConfigError(_listed(reasons) + "; remove them, or use task.unreadable=list")
        if not names:
            met = f"; {_listed(reasons)}" if reasons else ""
            raise ConfigError(
                f"task.folder={self.folder} holds no picture that can be read{met}; "
                "give a folder with .jpg, .png, .gif, .webp, .bmp, .tif or .ppm files"
            )
        if self.target == "reconstruction":
            return names
        inside = [name for name in names if "/" in name]
        classes = {name.split("/")[0] for name in inside}
        if len(classes) < 2:
            met = f"only {classes.pop()}" if classes else "none"
            raise ConfigError(
                f"task.target=class wants a subfolder for each class, two at least, and "
                f"task.folder={self.folder} has {met} with pictures; sort the pictures into "
                "subfolders, or use task.target=reconstruction"
            )
        return inside

    @cached_property
    def _found(self) -> tuple[list[str], dict[str, str]]:
        """Return the readable pictures' paths inside the folder, and why others are not."""
        folder = Path(self.folder).expanduser()
        names = find_pictures(folder)
        checked = {name: why_unreadable(folder / name) for name in names}
        readable = [name for name, reason in checked.items() if reason is None]
        return readable, {name: why for name, why in checked.items() if why is not None}


def autoencoder(width: int) -> nn.Sequential:
    """Return layers that see early on patches: 16 numbers for each 8x8 pixels in between."""
    return nn.Sequential(
        nn.Conv2d(3, width, PATCH, stride=PATCH),  # [n, width, size / 8, size / 8]
        Residual(width),
        nn.Conv2d(width, LATENT, 1),
        nn.Conv2d(LATENT, width, 1),
        Residual(width),
        nn.Conv2d(width, 3 * PATCH**2, 1),
        nn.PixelShuffle(PATCH),
    )


def classifier(width: int, classes: int) -> nn.Sequential:
    """Return a CNN that halves the picture three times."""
    layers: list[nn.Module] = []
    for before, after in ((3, width // 2), (width // 2, width), (width, 2 * width)):
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes)
    )


class Residual(nn.Module):
    """Two 3x3 convolutions whose result is added to what came in [n, width, h, w]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape."""
        changed: Tensor = features + self.change(features)
        return changed


def _want(field: str, met: str, choices: tuple[str, ...]) -> None:
    if met not in choices:
        raise ConfigError(f"task.{field}={met}: wanted {' or '.join(choices)}")


def _want_folder(met: str) -> None:
    folder = Path(met).expanduser()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(
            f"task.folder={met} {what} (looked in {Path.cwd()}); "
            "give a folder of pictures: task.folder=PATH"
        )


def _listed(reasons: Mapping[str, str], most: int = 10) -> str:
    """Return how many files cannot be read, and the first names with their reasons."""
    first = ", ".join(f"{name} ({why})" for name, why in list(reasons.items())[:most])
    more = f" and {len(reasons) - most} more" if len(reasons) > most else ""
    noun = "picture" if len(reasons) == 1 else "pictures"
    return f"{len(reasons)} {noun} cannot be read: {first}{more}"
