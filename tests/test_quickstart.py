"""What README tells a reader to write and to type works as it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]


def test_the_readers_own_model_trains(train, tmp_path):
    (tmp_path / "mine.py").write_text(PYTHON[0])
    (tmp_path / "mine.yaml").write_text(next(t for language, t in BLOCKS if language == "yaml"))
    assert train("mine.yaml", processes=2).codes == [0, 0]
    assert train("mine.yaml", "name=wide", "task.width=512", "train.precision=bfloat16").codes == [
        0
    ]
    for name in ("mine", "wide"):
        status = json.loads((tmp_path / "runs" / name / "status.json").read_text())
        assert status["metrics"]["valid/accuracy"] > 0.6


def test_the_readers_own_loop_trains(tmp_path):
    (tmp_path / "mine.py").write_text(PYTHON[0])
    (tmp_path / "loop.py").write_text(PYTHON[1])
    command = [sys.executable, "loop.py"]
    assert subprocess.run(command, cwd=tmp_path, check=False, timeout=60).returncode == 0


def test_the_weights_go_into_the_readers_bare_model(train, tmp_path):
    (tmp_path / "mine.py").write_text(PYTHON[0])
    (tmp_path / "mine.yaml").write_text(next(t for language, t in BLOCKS if language == "yaml"))
    assert train("mine.yaml", processes=2).codes == [0, 0]
    script = next(text for text in PYTHON if "load_model" in text)
    (tmp_path / "out.py").write_text(f"""{script}
from safetensors.torch import load_file

path = "runs/mine/checkpoints/last/model.safetensors"
bare = Mine(width=128).model()
bare.load_state_dict(load_file(path))
x, y = Mine().datasets()["valid"].tensors
assert bare(x).equal(model(x))
""")
    command = [sys.executable, "out.py"]
    assert subprocess.run(command, cwd=tmp_path, check=False, timeout=60).returncode == 0


@pytest.mark.slow
def test_the_readers_own_loop_trains_on_two_processes(tmp_path):
    (tmp_path / "mine.py").write_text(PYTHON[0])
    (tmp_path / "loop.py").write_text(PYTHON[1])
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, "-m", *torchrun, "loop.py"]
    assert subprocess.run(command, cwd=tmp_path, check=False, timeout=60).returncode == 0


@pytest.mark.slow
def test_the_first_run_prints_what_readme_shows(run_module, tmp_path):
    ended = run_module("launch.train", processes=2)
    shown = next(text for language, text in BLOCKS if language == "console").splitlines()
    assert shown[1] in ended.stdout.splitlines()
    status = json.loads((tmp_path / "runs/digits/status.json").read_text())
    assert status["state"] == "completed"
    assert status["step"] == 460
    assert status["metrics"]["valid/accuracy"] >= 0.965


def test_configs_named_in_readme_exist_and_all_are_named():
    named = set(re.findall(r"configs/(\w+\.yaml)", README))
    assert named == {path.name for path in (ROOT / "configs").glob("*.yaml")}


def test_help_lists_every_key(run_module):
    text = run_module("launch.train", "--help").stdout
    for key in (
        "train.global_batch_size",
        "evaluate.every_steps",
        "launch.timeout_s",
        "data.workers",
    ):
        assert key in text
