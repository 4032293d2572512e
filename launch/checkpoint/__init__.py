"""Checkpoints: safetensors and JSON, whole or not there, checked when they are read."""

from launch.checkpoint import manifest
from launch.checkpoint.files import (
    CheckpointError,
    Contents,
    ContentsError,
    collect,
    fault,
    in_order,
    link,
    newest,
    read,
    read_state,
    write,
)
from launch.checkpoint.writer import Order, Writer, Written

__all__ = [
    "CheckpointError",
    "Contents",
    "ContentsError",
    "Order",
    "Writer",
    "Written",
    "collect",
    "fault",
    "in_order",
    "link",
    "manifest",
    "newest",
    "read",
    "read_state",
    "write",
]
