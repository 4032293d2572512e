"""What training is planned for: devices, their memory, how fast they are and how they are tied."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from launch.config import Config
from launch.planning.sizes import shown_bytes
from parallel import Place, find_device
from parallel.devices import cores_for

MOST_CPU_DEVICES = 4
FLOPS_PER_S = 50e12  # of a GPU that is not here and of which nothing is said: reached, not printed
INSIDE_PER_S, INSIDE_LATENCY_S = 12e9, 30e-6  # between GPUs of a node that is not here: PCIe
BETWEEN_PER_S, BETWEEN_LATENCY_S = 1.25e9, 60e-6  # between nodes: 10 Gbit Ethernet


@dataclass(frozen=True)
class Machine:
    """Devices alike; on a CPU a device is a process with ``cores`` of its cores.

    is_here: whether work can be timed on this machine's own devices. memory_bytes: of a device,
    None where nothing limits it. bytes_per_s: of the slowest link that a step crosses, where
    given; flops_per_s: what a device reaches, where given. name: of a device.
    """

    devices_per_node: int = 1
    nodes: int = 1
    is_cpu: bool = True
    is_here: bool = True
    cores: int = 1
    memory_bytes: int | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    name: str = "CPU"

    @property
    def devices(self) -> int:
        """All devices."""
        return self.nodes * self.devices_per_node

    @property
    def described(self) -> str:
        """In words."""
        each = f"{self.cores} core{'s' if self.cores > 1 else ''} each" if self.is_cpu else "GPUs"
        nodes = f"{self.nodes} nodes x " if self.nodes > 1 else ""
        memory = f", {shown_bytes(self.memory_bytes)} each" if self.memory_bytes else ""
        return f"{nodes}{self.devices_per_node} x {self.name} ({each}{memory})"


@dataclass(frozen=True)
class Wanted:
    """What a person says of the machine; None: this one's."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    bytes_per_s: float | None = None
    memory_bytes: int | None = None
    flops_per_s: float | None = None


def find_machine(config: Config, wanted: Wanted | None = None) -> Machine:
    """Return this machine as ``wanted`` changes it. Raises ``UsageError`` for launch.device."""
    said = wanted or Wanted()
    device, _ = find_device(Place(), config.launch.device)
    nodes, memory = said.nodes or 1, said.memory_bytes
    if memory is None and config.launch.device_memory_gib is not None:
        memory = int(config.launch.device_memory_gib * 2**30)
    here = torch.cuda.device_count() if device.type == "cuda" else 0
    if not here and said.gpus_per_node is None:
        count, share = cpu_devices()
        return Machine(
            count,
            nodes,
            is_here=said.flops_per_s is None,
            cores=share,
            memory_bytes=memory,
            bytes_per_s=said.bytes_per_s,
            flops_per_s=said.flops_per_s,
            name=cpu_name(),
        )
    count = said.gpus_per_node or here
    if memory is None and here:
        memory = torch.cuda.get_device_properties(0).total_memory
    return Machine(
        count,
        nodes,
        is_cpu=False,
        is_here=count <= here and said.flops_per_s is None,
        memory_bytes=memory,
        bytes_per_s=said.bytes_per_s,
        flops_per_s=said.flops_per_s,
        name=torch.cuda.get_device_name(0) if here else "GPU",
    )


def cpu_devices() -> tuple[int, int]:
    """Return how many devices this machine's cores make, and the cores of each."""
    cores = cpu_cores()
    count = min(MOST_CPU_DEVICES, cores)
    return count, cores // count


def cpu_cores() -> int:
    """Return how many cores this process may use."""
    return len(cores_for(Place())) or os.cpu_count() or 1


def cpu_name() -> str:
    """Return what the system calls the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return "CPU"
