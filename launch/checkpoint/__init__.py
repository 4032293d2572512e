"""Checkpoints: safetensors and JSON, whole or not there, checked when they are read."""

from launch.checkpoint import manifest
from launch.checkpoint.files import (
    Contents,
    collect,
    fault,
    in_order,
    newest,
    read,
    read_state,
    write,
)
from launch.checkpoint.links import CheckpointError, ContentsError, link, refuse_blocked
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
    "refuse_blocked",
    "write",
]
