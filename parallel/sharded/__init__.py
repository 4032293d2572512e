"""A model whose parameters, gradients and optimizer state are divided over the processes."""

from parallel.sharded.strategy import FSDP

__all__ = ["FSDP"]
