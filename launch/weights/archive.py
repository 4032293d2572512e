"""What ``torch.save`` wrote, read without running anything that a file may hold.

The reader is torch's own for weights (``weights_only``), which knows tensors and plain containers.
Whatever else a pickle asks for is refused before it is imported.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from launch.weights.errors import WeightsError

ZIP = b"PK\x03\x04"
ASKED = re.compile(r"GLOBAL ([\w.]*\w) ")  # torch names there what it refused to import
SENTENCE = re.compile(r"(?<=\S)\.(?:\s|$)|\n")  # where one ends: a message may hold advice
WORD = re.compile(r"[A-Za-z]{2}")


def load(path: Path) -> Any:
    """Return the object in a file of ``torch.save``, its tensors on the CPU.

    They are mapped from the file, not copied, where its format allows (all since torch 1.6).
    """
    try:
        with path.open("rb") as file:
            mapped = file.read(len(ZIP)) == ZIP
        with warnings.catch_warnings():  # of formats that it then reads, or refuses by an error
            warnings.simplefilter("ignore")
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except UnpicklingError as error:
        raise WeightsError(_refusal(path, str(error))) from None
    except Exception as error:  # torch's readers raise whatever a broken file makes them raise
        why = SENTENCE.split(str(error).strip(), maxsplit=1)[0]
        said = f": {why}" if WORD.search(why) else ""  # a bare number is a byte that it stumbled on
        raise WeightsError(
            f"{path} is damaged, cut off, or no file of tensors that torch.save wrote{said}; "
            "fetch it again, or save model.state_dict() anew"
        ) from error


def _refusal(path: Path, message: str) -> str:
    asked = ASKED.search(message)
    if asked is None:
        return (
            f"{path} is no file of tensors as torch.save writes them (pickle protocol 2), and "
            "nothing in it was run; fetch it again, or save model.state_dict() anew"
        )
    return (
        f"{path} holds more than tensors: reading it would call {asked[1]}. It is refused, "
        "and nothing in it was run. Where you trust its author, take the weights out yourself: "
        f"found = torch.load({path.name!r}, weights_only=False), then torch.save of the tensors "
        "alone"
    )
