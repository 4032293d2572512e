"""strategy.name=auto where the memory of a device is known: real processes."""

from __future__ import annotations

import json

import pytest

from launch.config import load
from launch.planning.auto import Decision, _again, _instead, settings_of
from launch.planning.candidates import Offer, candidates
from launch.planning.outlook import Prospect

WIDE = (
    "task._target_=tests.launch.planning.planned_tasks.Plain",
    "task.width=384",
    "task.layers=12",
    "train.global_batch_size=8",
    "train.max_steps=2",
    "name=a",
)  # about 7 MB of parameters: ddp needs 4 times that, fsdp and two stages about half


def status(tmp_path):
    return json.loads((tmp_path / "runs/a/status.json").read_text())


def test_a_run_that_fits_is_ddp_without_a_word(train, tmp_path):
    ended = train(*WIDE, "launch.device_memory_gib=1", processes=2)
    assert ended.codes == [0, 0], ended.output
    assert status(tmp_path)["strategy"] == "ddp"
    assert "auto" not in ended.output


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_divided_and_told_why_and_goes_on_alike(train, tmp_path):
    words = (*WIDE, "launch.device_memory_gib=0.032")
    ended = train(*words, processes=2)
    assert ended.codes == [0, 0], ended.output
    chosen = status(tmp_path)["strategy"]
    assert chosen in ("fsdp", "pipeline")
    assert f"auto: {chosen}" in ended.output
    assert ended.output.count("since ddp would need ") == 1
    assert "name: auto" in (tmp_path / "runs/a/config.yaml").read_text()
    again = train(*words, "train.max_steps=4", processes=2)
    assert again.codes == [0, 0], again.output
    assert status(tmp_path) | {"step": 4, "strategy": chosen} == status(tmp_path)
    assert f"auto: {chosen}, as the run was before" in again.output


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_fits_nowhere_is_refused_with_what_to_type(train, tmp_path, processes):
    ended = train(*WIDE, "launch.device_memory_gib=0.005", processes=processes)
    assert ended.codes == [2] * processes, ended.output
    name = "single" if processes == 1 else "ddp"
    assert f"{name} would need " in ended.output
    assert f"strategy.name={name} trains all the same" in ended.output
    assert "Traceback" not in ended.output


def test_a_named_strategy_is_not_judged(train):
    words = (*WIDE, "launch.device_memory_gib=0.005", "strategy.name=single")
    assert train(*words).codes == [0]


TERMS = {"processes": 2, "memory_bytes": 100}
KEPT = {**TERMS, "settings": {"name": "fsdp"}}


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        (KEPT, Decision({"name": "fsdp"}, "auto: fsdp, as the run was before")),
        ({**KEPT, "processes": 4}, None),
        ({**KEPT, "memory_bytes": 50}, None),
        (None, None),
        ("", None),
    ],
)
def test_a_decision_is_remembered_for_the_same_devices(kept, wanted):
    assert _again(kept, TERMS) == wanted


def ways(fsdp, pipeline):
    families = candidates(Offer(load(), 2, True))
    found = [family[0] for family in families if family[0].kind in ("fsdp", "pipeline")]
    return [
        Prospect(each, step_s, (size,), fits=size <= 90)
        for each, (step_s, size) in zip(found, (fsdp, pipeline), strict=True)
    ]


@pytest.mark.parametrize(
    ("fsdp", "pipeline", "may_stay", "wanted", "said"),
    [
        ((1.0, 50), (2.0, 60), False, "fsdp", "pipeline m=2 should take 2.00x the time"),
        ((2.0, 50), (1.0, 60), False, "pipeline", "fsdp should take 2.00x the time"),
        ((1.0, 2**30), (2.0, 60), False, "pipeline", "and fsdp 1.0 GiB"),
        ((1.0, 95), (2.0, 95), True, None, "auto: ddp, although why"),
    ],
)
def test_the_fastest_that_fits_is_taken(fsdp, pipeline, may_stay, wanted, said):
    found = _instead(ways(fsdp, pipeline), "why", may_stay=may_stay)
    assert found.settings.get("name") == wanted
    assert said in found.note


def test_settings_are_those_of_the_words():
    *_, pipelines = candidates(Offer(load(), 2, True))
    assert settings_of(pipelines[1]) == {"name": "pipeline", "stages": 2, "microbatches": 4}
