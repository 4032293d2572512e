"""Training goes on when nobody reads what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("redirect", ["| head -1", ">&-", ">&- 2>&-"])
def test_a_closed_terminal_or_pipe_ends_no_run(tmp_path, redirect):
    command = f"{sys.executable} -m launch.train name=a train.epochs=2 {redirect}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    status = json.loads((tmp_path / "runs/a/status.json").read_text())
    assert (ended.returncode, status["state"], status["step"]) == (0, "completed", 46)
