"""Predicted memory against that of processes, by the command that measures both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FEW = [
    "autoencoder/16, 160x160, momentum",
    "text 320 wide, 3 stages, 1f1b, 8",
    "digits 96 wide, BatchNorm, ddp, AdamW",
]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_predicted_memory_is_what_tensors_and_processes_take():
    command = [sys.executable, "benchmarks/memory.py", *FEW]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    rows = [line.split() for line in said.splitlines() if line.endswith("%")]
    assert len(rows) == 1 + 3 + 2  # devices
    for _, _, of_tensors, _, _, of_process in rows:
        assert abs(float(of_tensors.rstrip("%"))) <= 1
        assert abs(float(of_process.rstrip("%"))) <= 12
