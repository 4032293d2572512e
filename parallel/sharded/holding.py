"""What each process has slices of, as whole tensors to save, and back again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

from parallel.naming import parameter_of
from parallel.strategy import EngineState
from parallel.world import World

Key = tuple[str, str]  # a name, and what of


def deal(found: EngineState, module: nn.Module, world: World) -> EngineState:
    """Return of ``found``, which refers to slices, the whole tensors that this rank is to save.

    Ranks have about as many bytes each; what is no slice is rank 0's. One tensor at a time is
    made whole, and kept on the CPU. Collective.
    """
    first = {parameter: name for name, parameter in module.named_parameters()}
    tied = module.named_parameters(remove_duplicate=False)
    same = {name: first[parameter] for name, parameter in tied}  # saved once, under each name
    every = {(same.get(n, n), "model"): t for n, t in found.model.items()}
    every |= {(key, "optimizer"): t for key, t in found.optimizer.items()}
    owners = _owners(every, world.size)
    kept: dict[Key, Tensor] = {}
    for key, tensor in every.items():
        whole = _whole(tensor, world)
        if owners[key] == world.rank:
            kept[key] = whole
    model = {n: kept[key] for n in found.model if (key := (same.get(n, n), "model")) in kept}
    optimizer = {n: kept[key] for n in found.optimizer if (key := (n, "optimizer")) in kept}
    return EngineState(model, optimizer, found.groups, found.scaler)


def _owners(tensors: Mapping[Key, Tensor], size: int) -> dict[Key, int]:
    """Return who saves each tensor: the largest first, each to who has least by then."""
    owners = {key: 0 for key, t in tensors.items() if not isinstance(t, DTensor)}
    held = [0] * size
    held[0] = sum(tensors[key].nbytes for key in owners)
    for key, tensor in sorted(tensors.items(), key=lambda item: -item[1].nbytes):
        if key not in owners:
            owners[key] = held.index(min(held))
            held[owners[key]] += tensor.nbytes
    return owners


def _whole(tensor: Tensor, world: World) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    there = tensor.detach().to(world.device)  # what is offloaded goes by the device
    return there.full_tensor().cpu()  # type: ignore[attr-defined,no-any-return]  # a DTensor


def slices(state: EngineState, module: nn.Module) -> EngineState:
    """Return this rank's slices of ``state``, which has whole tensors, in copies of their own."""
    own = module.state_dict()
    parameters = dict(module.named_parameters())
    model = {name: _like(whole, own.get(name)) for name, whole in state.model.items()}
    optimizer = {
        key: _like(whole, parameters.get(parameter_of(key)))
        for key, whole in state.optimizer.items()
    }
    return EngineState(model, optimizer, state.groups, state.scaler)


def _like(whole: Tensor, own: Tensor | None) -> Tensor:
    """Return ``whole`` divided as ``own`` is; on every rank all of it, where shapes differ."""
    if not isinstance(own, DTensor) or not whole.ndim:
        return whole
    placements: Sequence[Placement] = own.placements
    if whole.shape != own.shape:
        placements = [Replicate() for _ in placements]
    divided = distribute_tensor(whole.detach(), own.device_mesh, placements, src_data_rank=None)
    return divided.to(own.device)  # where it is offloaded
