"""Which way is advised, and the command that takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.config import load
from launch.planning.advice import advise, command, remedies
from launch.planning.candidates import Offer, candidates
from launch.planning.corrections import Factors
from launch.planning.machine import Machine
from launch.planning.outlook import Outlook, Prospect, View
from launch.planning.report import table, text
from launch.planning.subject import Subject

GIB = 2**30
PLAIN = "task._target_=tests.launch.planning.planned_tasks.Plain"


@pytest.fixture(scope="module")
def subject():
    return Subject.of(load(overrides=[PLAIN, "task.width=512", "task.layers=12"]))


def outlook(subject, steps, needs=(), memory=None):
    """Ways with so many seconds a step each, that need so many GiB."""
    machine = Machine(2, is_cpu=False, memory_bytes=memory and memory * GIB, name="GPU")
    families = candidates(Offer(subject.config, 2, True))
    found = []
    for at, family in enumerate(families):
        need = (int(needs[at] * GIB),) if needs else ()
        is_room = max(need) <= 0.9 * machine.memory_bytes if need and memory else None
        step_s = steps[at]
        ratio = steps[0] / step_s if step_s else None
        found.append(Prospect(family[0], step_s, need, 0.1, 0.2, ratio, ratio, is_room))
    return Outlook(View(subject, machine, None, Factors()), tuple(found))


#            single ddp  fsdp  model_parallel  pipeline
STEPS = (1.0, 0.55, 0.7, 1.1, 0.6)
NEEDS = (20, 18, 8, 11, 10)


@pytest.mark.parametrize(
    ("steps", "needs", "memory", "wanted", "said"),
    [
        (STEPS, (), None, "ddp", "ddp: 1.82x on 2 devices"),
        (STEPS, NEEDS, 24, "ddp", "fsdp needs 56 % less memory per device and is 1.43x"),
        (STEPS, NEEDS, 16, "pipeline m=2", "single would need 20.0 GiB and ddp would need 18.0"),
        ((1.0, 1.3, 1.7, 1.1, 1.2), (), None, "single", "model_parallel, would be 0.91x"),
        ((1.0, 0.995, 1.7, 1.1, 1.2), (), None, "single", "1e+03 ms a step on one device"),
        ((None,) * 5, NEEDS, 16, "fsdp", "the simplest way that fits"),
    ],
)
def test_the_fastest_that_fits_is_advised_with_its_reason(
    subject, steps, needs, memory, wanted, said
):
    found = advise(outlook(subject, steps, needs, memory), ["mine.yaml", "a.b=c"])
    assert found.prospect.candidate.name == wanted
    assert said in found.why
    assert "-m launch.train mine.yaml a.b=c strategy.name=" in found.command


def test_where_nothing_fits_each_need_is_said_and_no_command(subject):
    found = advise(outlook(subject, STEPS, NEEDS, 6))
    assert found.prospect is None
    assert found.command == ""
    assert "no way fits devices of 6.0 GiB at a global batch of 64: single 20.0 GiB" in found.why


@pytest.mark.parametrize(
    ("devices", "at", "per_node", "nodes", "wanted"),
    [
        (2, 0, 2, 1, "python -m launch.train x.yaml strategy.name=single"),
        (2, 1, 2, 1, "torchrun --nproc_per_node=2 -m launch.train x.yaml strategy.name=ddp"),
        (4, 3, 4, 1, "torchrun --nproc_per_node=2 -m launch.train x.yaml "
         "strategy.name=model_parallel strategy.stages=2"),
        (4, 1, 2, 2, "torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d "
         "--rdzv_endpoint=HOST:29500 -m launch.train x.yaml strategy.name=ddp"),
    ],
)  # fmt: skip
def test_the_command_starts_as_many_processes_as_the_way_has(devices, at, per_node, nodes, wanted):
    way = candidates(Offer(load(), devices, True))[at][0]
    assert command(way, Machine(per_node, nodes), ["x.yaml"]) == wanted


@pytest.mark.slow
def test_remedies_are_predicted(subject):
    machine = Machine(2, memory_bytes=40_000_000)
    view = View(subject, machine, None, Factors())
    found = {each.candidate.name: each for each in remedies(view)}
    assert {"fsdp, again", "pipeline, again", "fsdp on 4 devices", "pipeline on 4 devices"} <= set(
        found
    )
    assert any(name.startswith("ddp accumulate=") for name in found)
    assert found["fsdp on 4 devices"].fits
    assert all(each.bytes for each in found.values())


def test_a_report_shows_what_would_do_where_nothing_fits(subject):
    bleak = outlook(subject, STEPS, NEEDS, 6)
    lines = text(bleak, advise(bleak), [replace(bleak.prospects[2], fits=True)]).splitlines()
    assert "  fsdp needs 8.0 GiB a device, and fits: strategy.name=fsdp" in lines


def test_a_table_says_nothing_of_limits_where_there_is_none():
    rows = [["a", "1 GiB", "yes", "7", *"123456"]]
    assert table(rows, True)[0].split()[:3] == ["way", "memory/device", "fits"]
    assert "fits" not in table(rows, False)[0]
    assert table(rows, False)[1].split() == ["a", "1", "GiB", *"123456"]
