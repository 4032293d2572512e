"""Checkpoints: safetensors and JSON, whole or not there, checked when they are read."""

from launch.checkpoint.files import CheckpointError, link, newest, read, write

__all__ = ["CheckpointError", "link", "newest", "read", "write"]
