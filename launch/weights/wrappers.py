"""Names without what wrappers put into them, at the start or in the middle.

``nn.DataParallel`` and DDP make ``module.`` of a module's own name, ``torch.compile`` makes
``_orig_mod.``, each for all names under it:

    module._orig_mod.encoder.0.weight     encoder.module.0.weight     ->     encoder.0.weight

A model may also have a part that is truly called so. Hence names are not edited, but led down the
tree of the model's own names; a segment is passed over where the tree does not know it, or where
more names find their place if it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

WRAPPERS = frozenset({"module", "_orig_mod"})
MOST = 32  # wrappers in one name; more are no wrappers, and would cost time

Rest = tuple[str, ...]  # the segments of a name that are still to be placed


@dataclass
class _Node:
    """A module of the model, or a tensor: then ``name`` is its own, whole."""

    name: str | None = None
    parts: dict[str, _Node] = field(default_factory=dict)


def unwrap(names: Iterable[str], own: Collection[str]) -> dict[str, str]:
    """Return, for each of ``names`` that means one of ``own``, which; no two mean the same."""
    root, deepest = _Node(), 0
    for name in own:
        node = root
        for part in name.split("."):
            node = node.parts.setdefault(part, _Node())
        node.name = name
        deepest = max(deepest, name.count("."))
    return _place(root, {tuple(n.split(".")): n for n in names if n.count(".") <= deepest + MOST})


def _place(node: _Node, rests: Mapping[Rest, str]) -> dict[str, str]:
    if not node.parts:
        return {rests[()]: node.name} if node.name is not None and () in rests else {}
    rests = _without(rests, WRAPPERS - node.parts.keys(), MOST)
    placed = _descend(node, rests)
    doubtful = WRAPPERS & node.parts.keys()
    if len(placed) < len(rests) and any(rest[:1] and rest[0] in doubtful for rest in rests):
        other = _place(node, _without(rests, doubtful, 1))
        return other if len(other) > len(placed) else placed
    return placed


def _descend(node: _Node, rests: Mapping[Rest, str]) -> dict[str, str]:
    inner: dict[str, dict[Rest, str]] = defaultdict(dict)
    for rest, name in rests.items():
        if rest and rest[0] in node.parts:
            inner[rest[0]][rest[1:]] = name
    placed: dict[str, str] = {}
    for part, under in inner.items():
        placed |= _place(node.parts[part], under)
    return placed


def _without(rests: Mapping[Rest, str], wrappers: Collection[str], most: int) -> dict[Rest, str]:
    """Return ``rests`` without up to ``most`` leading wrappers; where two meet, the shorter."""
    if not wrappers:
        return dict(rests)
    result: dict[Rest, str] = {}
    for rest, name in sorted(rests.items(), key=lambda pair: len(pair[0])):
        start = 0
        while start < min(most, len(rest)) and rest[start] in wrappers:
            start += 1
        result.setdefault(rest[start:], name)
    return result
