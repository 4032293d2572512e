"""``python -m launch.plan`` as a person types it."""

from __future__ import annotations

import json

import pytest

SMALL = ("task._target_=tests.launch.planning.planned_tasks.Plain", "task.width=64")
THERE = ("--gpus-per-node=2", "--device-tflops=1", "--bandwidth", "1GB", "--device-memory=1GiB")


def test_ways_split_advice_and_command_are_printed_and_nothing_is_written(run_module, tmp_path):
    ended = run_module("launch.plan", *SMALL, *THERE)
    assert ended.returncode == 0, ended.stdout
    assert "2 x GPU (GPUs, 1.0 GiB each); global batch 64" in ended.stdout
    assert "times are counted, not measured: --device-tflops is given" in ended.stdout
    for word in ("single", "ddp", "fsdp", "model_parallel", "pipeline m=", "data_parallel"):
        assert f"\n{word}" in ended.stdout
    assert "2 stages of 4 layers, cut before 2: " in ended.stdout
    assert "advice: " in ended.stdout
    assert "-m launch.train " + " ".join(SMALL) in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_json_has_the_same_for_programs(run_module):
    ended = run_module("launch.plan", *SMALL, *THERE, "--json", "--nodes=2")
    found = json.loads(ended.stdout)
    assert found["devices"] == 4
    ways = {each["name"].partition(" m=")[0]: each for each in found["ways"]}
    assert ways["ddp"]["step_s"] > 0
    assert len(ways["ddp"]["bytes"]) == 4
    assert ways["2x2 pipeline"]["cuts"] == [2]
    assert found["advice"]["way"] in {each["name"] for each in found["ways"]}


@pytest.mark.slow
def test_without_flags_this_machine_is_measured(run_module, tmp_path):
    ended = run_module("launch.plan", *SMALL, "launch.device=cpu")
    assert ended.returncode == 0, ended.stdout
    assert "times are measured on" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bandwidth=fast",), "--bandwidth: wanted a number and its unit, such as 100Gbit"),
        (("--device-memory=24",), "--device-memory: wanted a number and its unit, such as 24GiB"),
        (("--nodes=0",), "--nodes: wanted more than nothing, met 0"),
        (("--nodes=x",), "--nodes: wanted a whole number, met 'x'"),
        (("--gpus=2",), "there is no key gpus"),
        (("task.widht=3",), "task.widht"),
    ],
)
def test_a_mistake_is_one_message(run_module, words, said):
    ended = run_module("launch.plan", *words)
    assert ended.returncode == 2, ended.stdout
    assert said in ended.stdout
    assert "Traceback" not in ended.stdout


def test_help_names_every_flag(run_module):
    ended = run_module("launch.plan", "--help")
    assert ended.returncode == 0
    for flag in ("--nodes N", "--gpus-per-node G", "--bandwidth B", "--device-memory M", "--json"):
        assert flag in ended.stdout
    assert "launch.plan [FILE.yaml ...]" in ended.stdout


@pytest.mark.slow
def test_what_fits_nowhere_is_said_with_what_would_do(run_module):
    ended = run_module("launch.plan", *SMALL, *THERE[:-1], "--device-memory=8.2MB")
    assert ended.returncode == 0, ended.stdout
    assert "advice: no way fits devices of 7.8 MiB" in ended.stdout
    assert "fsdp, again needs" in ended.stdout
    assert "accumulate=" in ended.stdout
