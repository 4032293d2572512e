"""One layer of a model, copied and run alone: what goes in, comes out, and autograd keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True)
class Passed:
    """What a layer gives to the next: detached, and the leaves that the backward keeps anyway."""

    tree: Any
    kept: frozenset[int] = frozenset()  # places among the tree's leaves


def entry(given: Any) -> Any:
    """Return what a layer can be called with, again and again: even one that works in place."""
    return tree_map_only(
        Tensor, lambda each: each.detach().requires_grad_(each.requires_grad).clone(), given
    )


def ends(output: Any) -> list[Tensor]:
    """Return the tensors of an output from which a backward begins."""
    return [each for each in tensors(output) if each.requires_grad]


def tensors(tree: Any) -> list[Tensor]:
    """Return all tensors in tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def forward(layer: nn.Module, given: Passed) -> tuple[Passed, int]:
    """Return what the layer gives, and the bytes it keeps for its backward.

    Counted are storages, once each; neither parameters and buffers, nor what the layer before
    keeps of what it gave.
    """
    kept: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[_address(tensor)] = tensor.untyped_storage()
        return tensor.detach()  # an output itself would keep its own graph, and so itself, for ever

    inputs = entry(given.tree)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(inputs)
    own = {_address(each) for each in (*layer.parameters(), *layer.buffers())}
    before = _at(inputs, lambda place, _: place in given.kept)
    saved = sum(each.nbytes() for at, each in kept.items() if at not in own | before.keys())
    still = _at(output, lambda _, at: at in kept or at in before)
    tree = tree_map_only(
        Tensor, lambda each: each.detach().requires_grad_(each.requires_grad), output
    )
    return Passed(tree, frozenset(still.values())), saved


def _at(tree: Any, wanted: Callable[[int, int], bool]) -> dict[int, int]:
    """Return address -> place of the tensors among a tree's leaves that are wanted."""
    places = [(n, leaf) for n, leaf in enumerate(tree_leaves(tree)) if isinstance(leaf, Tensor)]
    return {_address(leaf): n for n, leaf in places if wanted(n, _address(leaf))}


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # fake tensors have no data_ptr
