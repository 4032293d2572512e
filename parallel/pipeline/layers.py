"""A model as a chain of named layers: what can be cut into stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from parallel.errors import UsageError

Layers = Sequence[tuple[str, nn.Module]]  # in order, each with its own name in the model

CHAIN = (
    "to be cut, a model is an nn.Sequential, or offers pipeline_layers(): its layers in order, as "
    "(name, module) pairs or a dict, each called with what the one before returned"
)


def layers(model: nn.Module) -> Layers:
    """Return the layers of ``model``: those it offers, else the children of an ``nn.Sequential``.

    A Sequential in a Sequential counts as its own layers. Raises ``UsageError`` where the model is
    no chain, or holds parameters or buffers outside of it.
    """
    offer = getattr(model, "pipeline_layers", None)
    if callable(offer):
        offered = offer()
        found = list(offered.items() if isinstance(offered, Mapping) else offered)
        _check_offered(model, found)
    elif _is_plain(model):
        found = list(_flat("", model))
    else:
        raise UsageError(f"the model is a {type(model).__name__}; {CHAIN}")
    if not found:
        raise UsageError("the model has no layers: there is nothing to cut into stages")
    _refuse_outside(model, found)
    _refuse_lazy(model)
    return found


def _is_plain(module: nn.Module) -> bool:
    """Whether calling ``module`` is calling its children one after the other, and nothing else."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    is_chain = isinstance(module, nn.Sequential) and "forward" not in module.__dict__
    return is_chain and type(module).forward is nn.Sequential.forward and not any(hooks)


def _flat(prefix: str, chain: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in chain._modules.items():  # named_children() leaves out what comes again
        if layer is not None and _is_plain(layer) and len(layer._modules):
            yield from _flat(f"{prefix}{name}.", layer)
        elif layer is not None:
            yield f"{prefix}{name}", layer


def _check_offered(model: nn.Module, found: Sequence[object]) -> None:
    known = dict(model.named_modules(remove_duplicate=False))
    for each in found:
        is_pair = isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], nn.Module)
        if not is_pair or known.get(each[0]) is not each[1]:  # type: ignore[index]  # a pair
            raise UsageError(
                f"pipeline_layers() of {type(model).__name__} gave {_shown(each)}, wanted pairs of "
                "a module of the model and its name there, such as ('blocks.0', self.blocks[0])"
            )


def _shown(each: object) -> str:
    return type(each).__name__ if isinstance(each, nn.Module) else repr(each)[:80]


def _refuse_outside(model: nn.Module, found: Layers) -> None:
    inside = {id(tensor) for _, layer in found for tensor in tensors_of(layer)}
    outside = [name for name, tensor in named_tensors(model).items() if id(tensor) not in inside]
    if outside:
        raise UsageError(
            f"no layer holds {', '.join(outside[:8])}: a model that is cut keeps all parameters "
            "and buffers in its layers"
        )


def _refuse_lazy(model: nn.Module) -> None:
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise UsageError(
            f"{', '.join(lazy[:8])} has no shape yet, so that its layer cannot be measured; call "
            "the model once on inputs of a batch's shape before it is returned"
        )


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of ``module``."""
    yield from module.parameters()
    yield from module.buffers()


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by all their names; tied ones come more than once."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}
