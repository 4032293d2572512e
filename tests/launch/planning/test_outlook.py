"""Every way side by side: counted for devices that are not here, and measured on these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config import load
from launch.planning.corrections import Factors, name_of, place_of, write_factors
from launch.planning.crew import Crew, CrewError
from launch.planning.machine import Machine, Wanted, find_machine
from launch.planning.outlook import foresee
from parallel import World

PLAIN = "task._target_=tests.launch.planning.planned_tasks.Plain"
GPUS = Machine(2, is_cpu=False, is_here=False, name="GPU", flops_per_s=1e12, bytes_per_s=1e9)


@pytest.fixture
def config(tmp_path):
    return load(overrides=[PLAIN, f"runs={tmp_path}", "task.width=64", "task.samples=64"])


def by_name(outlook):
    return {each.candidate.name.partition(" m=")[0]: each for each in outlook.prospects}


def test_devices_that_are_not_here_are_judged_by_arithmetic(config):
    outlook = foresee(config, GPUS)
    found = by_name(outlook)
    assert list(found) == [
        "single", "data_parallel", "ddp", "fsdp", "model_parallel", "pipeline",
    ]  # fmt: skip
    work_s = 3 * 2 * 4 * 64 * 64 * 64 / 1e12  # forward and twice backward; not the first input's
    assert found["single"].step_s == pytest.approx(work_s, rel=0.15)
    assert all(each.bytes and not each.problem for each in found.values())
    assert "counted, not measured" in outlook.notes[0]
    assert found["single"].speed_up == 1.0
    assert found["ddp"].efficiency == pytest.approx(found["ddp"].speed_up / 2)


def test_a_faster_link_makes_what_sends_much_faster(config):
    slow, fast = (
        by_name(foresee(config, replace(GPUS, bytes_per_s=speed, memory_bytes=None)))
        for speed in (1e6, 1e12)
    )
    assert slow["ddp"].step_s > 2 * fast["ddp"].step_s
    assert slow["single"].step_s == fast["single"].step_s


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_the_largest_batch(config):
    small = replace(GPUS, memory_bytes=9_500_000)
    found = by_name(foresee(config, small))
    assert [found["single"].fits, found["single"].largest_batch] == [True, pytest.approx(400, 1)]
    none = by_name(foresee(config, replace(GPUS, memory_bytes=4_000_000)))
    assert [none["ddp"].fits, none["ddp"].largest_batch] == [False, 0]


def test_a_task_that_cannot_be_cut_has_the_other_ways(tmp_path):
    words = [PLAIN.replace("Plain", "Uncut"), f"runs={tmp_path}"]
    found = by_name(foresee(load(overrides=words), GPUS))
    assert "define loss_of_outputs" in found["pipeline"].problem
    assert found["pipeline"].step_s is None
    assert found["ddp"].step_s is not None


def test_more_stages_than_layers_are_said(config):
    found = by_name(foresee(config, replace(GPUS, devices_per_node=6)))
    assert "the model has 4 layers to cut between" in found["pipeline"].problem
    assert not found["3x2 pipeline"].problem


def test_what_a_comparison_found_corrects_both(config):
    plain = by_name(foresee(config, GPUS))["ddp"]
    write_factors(place_of(config), Factors(2.0, 0.5, name_of(GPUS)))
    outlook = foresee(config, GPUS)
    found = by_name(outlook)["ddp"]
    assert found.step_s == pytest.approx(2 * plain.step_s)
    assert found.bytes[0] == pytest.approx(plain.bytes[0] / 2, abs=1)
    assert "times x 2.00, memory x 0.50" in outlook.notes[-1]
    assert by_name(foresee(config, GPUS, corrected=False))["ddp"] == plain


@pytest.mark.slow
def test_devices_that_are_here_are_timed(config):
    machine = replace(find_machine(config), devices_per_node=2, cores=1)
    outlook = foresee(config, machine)
    found = by_name(outlook)
    assert all(each.step_s > 0 for each in found.values())
    assert "times are measured on 2 x" in outlook.notes[0]
    assert found["pipeline"].plan.layers == 4


def fail(world: World) -> None:
    if world.rank:
        raise ValueError("no such data")


@pytest.mark.slow
def test_a_process_that_fails_ends_the_measurement_with_its_words():
    with Crew(2, 1, "cpu") as crew, pytest.raises(CrewError, match="ValueError: no such data"):
        crew.ask(fail, timeout_s=60)


@pytest.mark.parametrize(
    ("wanted", "is_cpu", "devices", "is_here"),
    [
        (Wanted(), True, None, True),
        (Wanted(gpus_per_node=4), False, 4, False),
        (Wanted(nodes=2, gpus_per_node=4), False, 8, False),
        (Wanted(flops_per_s=1e12), True, None, False),
    ],
)
def test_a_machine_is_this_one_unless_said_otherwise(wanted, is_cpu, devices, is_here):
    config = load(overrides=["launch.device=cpu"] if is_cpu else [])
    found = find_machine(config, wanted)
    assert (found.is_cpu, found.is_here) == (is_cpu, is_here)
    assert devices is None or found.devices == devices


def test_the_memory_of_a_device_is_the_configurations_unless_said_otherwise():
    config = load(overrides=["launch.device=cpu", "launch.device_memory_gib=2"])
    assert find_machine(config).memory_bytes == 2**31
    assert find_machine(config, Wanted(memory_bytes=5)).memory_bytes == 5
