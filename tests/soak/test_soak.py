"""The soak, short: see ``soak.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_ten_ends_the_run_has_the_bytes_of_the_unbroken_one(tmp_path):
    command = [sys.executable, Path(__file__).with_name("soak.py"), "--kills=10", "--seed=7"]
    ended = subprocess.run(
        [*command, "--folder", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "10 ends" in ended.stdout
    assert "the bytes of the unbroken run" in ended.stdout
