"""Who hears what happens in a run: the screen, the records, the status file, TensorBoard."""

from launch.listeners.console import Console
from launch.listeners.fan import ClosingListener, FanOut, fan_out
from launch.listeners.heartbeat import Heartbeat
from launch.listeners.records import Records
from launch.listeners.status import Status
from launch.listeners.tensorboard import TensorBoard

__all__ = [
    "ClosingListener",
    "Console",
    "FanOut",
    "Heartbeat",
    "Records",
    "Status",
    "TensorBoard",
    "fan_out",
]
