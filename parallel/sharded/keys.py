"""How a model is divided: the keys of the strategy."""

from __future__ import annotations

from dataclasses import dataclass

from parallel.errors import UsageError, require_at_least


@dataclass(frozen=True)
class Keys:
    """What is gathered when, in which precision, and where the rest is kept.

    blocks: modules that are gathered one at a time, by name; null: the layers of a chain, else
        what ``nn.ModuleList``s hold; []: none. What no block holds is there throughout a step.
    mixed_precision: gather and compute in bfloat16, reduce in float32.
    cpu_offload: keep what is divided, and update it, in host memory.
    reshard_after_forward: give a block up between its forward and its backward.
    checkpoint_every: compute every so-manieth block again in backward, instead of keeping what
        it computed; 0: none, 1: all.
    find_unused_parameters: as in ddp; each step then waits for the device.
    """

    blocks: list[str] | None = None
    mixed_precision: bool = False
    cpu_offload: bool = False
    reshard_after_forward: bool = True
    checkpoint_every: int = 0
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        require_at_least("strategy.checkpoint_every", self.checkpoint_every, 0)
        names = self.blocks
        if names is not None and not (
            isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        ):
            raise UsageError(
                "strategy.blocks: wanted null, or a list of names of modules, such as "
                f"[encoder, layers.0]; met {names!r}"
            )
