"""A run of the digits under torchrun, started again and again by one command."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

from history import entries

TASKS = {
    "ddp": ["task._target_=tests.soak.ledger.LedgerDigits"],
    # the arithmetic of a layer does not depend on the moment, as its time does
    "pipeline": [
        "task._target_=tests.soak.ledger.LedgerStages",
        "strategy={name: pipeline, balance: flops}",
    ],
}
ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """A run that can be started again and again, in a folder of its own."""

    folder: Path
    options: argparse.Namespace
    pace: str = "0 0 0"

    def start(self) -> Popen[bytes]:
        torchrun = ["-m", "torch.distributed.run", "--standalone"]
        torchrun += [f"--nproc_per_node={self.options.processes}"]
        words = [
            *TASKS[self.options.strategy],
            "name=soak",
            f"train.epochs={self.options.epochs}",
            f"data.workers={self.options.workers}",
            f"checkpoint.every_steps={self.options.every_steps}",
            "log.progress=none",
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        environ |= {"SOAK_PACE": self.pace, "PYTHONWARNINGS": "ignore"}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "terminal.txt").open("ab") as terminal:
            return Popen(
                [sys.executable, *torchrun, "-m", "launch.train", *words],
                cwd=self.folder,
                env=environ,
                stdin=DEVNULL,
                stdout=terminal,
                stderr=STDOUT,
            )

    @property
    def step(self) -> int:
        """The last that rank 0 did, whether it was saved or not."""
        done = entries(self.folder)
        return done[-1]["step"] if done else 0

    def lines(self) -> int:
        return len(entries(self.folder))
