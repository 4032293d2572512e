"""Which modules of a model are gathered one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from torch import nn

from parallel.agreement import listed
from parallel.errors import UsageError
from parallel.pipeline.layers import layers


@dataclass(frozen=True)
class Blocks:
    """Modules by their names, in the model's order; notices: what a person should know of them."""

    modules: dict[str, nn.Module]
    notices: list[str] = field(default_factory=list)


def find_blocks(model: nn.Module, names: Sequence[str] | None) -> Blocks:
    """Return the blocks of ``model``; names: see ``FSDP.blocks``.

    A module whose parameters others have too is none: they are kept with the whole. Raises
    ``UsageError`` for a name that is none of a module with parameters.
    """
    wanted = _automatic(model) if names is None else _named(model, names)
    inside = {n: m for n, m in model.named_modules() if m in wanted and m is not model}
    tied = [name for name, module in inside.items() if _is_tied(model, module)]
    blocks = {name: module for name, module in inside.items() if name not in tied}
    notices = []
    if tied:
        notices.append(
            f"gathered with the whole model, as they share parameters with others: {listed(tied)}"
        )
    if not blocks and names is None:
        notices.append(
            "the model has no layers that can be gathered one at a time, so that each step "
            "gathers it all; name modules of it in strategy.blocks"
        )
    return Blocks(blocks, notices)


def _automatic(model: nn.Module) -> set[nn.Module]:
    """Return a chain's layers, else what ``nn.ModuleList``s hold; of these, what has parameters."""
    if isinstance(model, nn.Sequential) or hasattr(model, "pipeline_layers"):
        try:
            return {layer for _, layer in layers(model) if _has_parameters(layer)}
        except UsageError:  # no chain, which matters to those who cut it
            pass
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    return {each for found in lists for each in _called(found) if _has_parameters(each)}


def _named(model: nn.Module, names: Sequence[str]) -> set[nn.Module]:
    known = dict(model.named_modules(remove_duplicate=False))
    known = {name: module for name, module in known.items() if name and _has_parameters(module)}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {listed(list(known))}"
            raise UsageError(
                f"strategy.blocks: the model has no module {name!r} with parameters; {hint}"
            )
    return {each for name in names for each in _called(known[name]) if _has_parameters(each)}


def _called(module: nn.Module) -> list[nn.Module]:
    """Return ``module``, or what is in it, where it is a list that is never called itself."""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [module]
    return [inner for each in module.children() for inner in _called(each)]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_tied(model: nn.Module, block: nn.Module) -> bool:
    """Whether a parameter of ``block`` has a name outside of it, too."""
    every = model.named_modules(remove_duplicate=False)
    own = tuple(f"{name}." for name, module in every if module is block)
    held = set(block.parameters())
    named = model.named_parameters(remove_duplicate=False)
    return any(p in held and not name.startswith(own) for name, p in named)
