"""run.sh: which entry point a first word starts, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_sh(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **variables}
    return subprocess.run(
        [ROOT / "run.sh", *words],
        cwd=cwd,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=90,
        check=False,
    )


def test_processes_must_be_a_number(tmp_path):
    ended = run_sh("train.epochs=1", cwd=tmp_path, NPROC="two")
    assert ended.returncode == 2
    assert "NPROC wants the number of processes, met 'two'" in ended.stdout


@pytest.mark.slow
def test_anything_else_goes_to_training_in_the_callers_folder(tmp_path):
    ended = run_sh("name=a", "train.max_steps=2", cwd=tmp_path, NPROC="2")
    assert ended.returncode == 0, ended.stdout
    assert "ddp on 2 processes" in ended.stdout
    assert (tmp_path / "runs/a/status.json").exists()


@pytest.mark.slow
def test_a_first_word_that_names_an_entry_point_starts_it(tmp_path):
    ended = run_sh("train", "name=a", "train.max_steps=2", cwd=tmp_path, NPROC="1")
    assert ended.returncode == 0, ended.stdout
    assert "single on 1 process" in ended.stdout
