"""Python values as JSON that every reader accepts, and back.

What JSON lacks is an object with one key: {"$float": "inf"}, {"$bytes": base64} or, for a mapping
whose keys are not all text, {"$items": [[key, value], ...]}. Tuples come back as lists, 0-d
tensors as numbers.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

TAGS = ("$float", "$bytes", "$items")


def encode(value: Any, name: str = "state") -> Any:
    """Return ``value`` as JSON can hold it. Raises ``TypeError`` naming what it cannot hold."""
    if isinstance(value, Tensor) and not value.ndim:
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"$float": repr(number)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _encode_mapping(value, name)
    if isinstance(value, int):  # numpy's and enums' own
        return int(value)
    raise TypeError(
        f"{name} is a {type(value).__name__}, and a checkpoint holds tensors, numbers, text, "
        "bytes, lists and mappings of these"
    )


def decode(value: Any) -> Any:
    """Return what ``encode`` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(tag, held)] = value.items()
        if tag == "$float":
            return float(held)
        if tag == "$bytes":
            return base64.b64decode(held, validate=True)
        if tag == "$items":
            return {decode(key): decode(item) for key, item in held}
    return {key: decode(item) for key, item in value.items()}


def _encode_mapping(value: Mapping[Any, Any], name: str) -> Any:
    if all(isinstance(key, str) and key not in TAGS for key in value):
        return {key: encode(item, f"{name}.{key}") for key, item in value.items()}
    pairs = [[encode(k, f"{name}'s key"), encode(v, f"{name}[{k!r}]")] for k, v in value.items()]
    return {"$items": pairs}
