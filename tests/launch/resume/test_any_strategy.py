"""A run that any strategy left is gone on with by any other, to the numbers of an unbroken one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

WAYS = {
    "single": (1, "strategy={name: single}"),
    "ddp 2": (2, "strategy={name: ddp}"),
    "pipeline 2": (2, "strategy={name: pipeline, split: [2], microbatches: 4}"),
    "pipeline 3": (3, "strategy={name: pipeline, stages: 3, schedule: gpipe, balance: flops}"),
    "fsdp 2": (2, "strategy={name: fsdp, checkpoint_every: 1}"),
    "fsdp 3": (3, "strategy={name: fsdp, blocks: [layers.0], cpu_offload: true}"),
    "2x2": (4, "strategy={name: pipeline, split: [layers.1], microbatches: 2}"),
}
WORDS = (
    "task._target_=tests.staged.Waves",
    "optimizer={_target_: torch.optim.AdamW, lr: 0.03}",
    "scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 3}",
    "train.global_batch_size=10",  # of 24 samples: 10, 10 and 4
    "train.accumulate=2",
    "train.clip_norm=0.1",
    "train.precision=float64",
    "log.every_steps=1",
    "evaluate.batch_size=3",
)
SAVED_AT, STEPS = 4, 9


@pytest.fixture
def go(train, tmp_path):
    """``go("a", "ddp 2", 4)`` trains run a to step 4 by that way."""

    def run(name, way, steps):
        processes, strategy = WAYS[way]
        words = (*WORDS, strategy, f"name={name}", f"train.max_steps={steps}")
        ended = train(*words, processes=processes)
        assert ended.codes == [0] * processes, ended.output
        return tmp_path / "runs" / name

    return run


def weights(folder: Path):
    found = {}
    for path in (folder / "checkpoints/last").glob("model*.safetensors"):
        found |= load_file(path)
    return found


def losses(folder: Path):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


def check_resumed(go, tmp_path, saver, loaders):
    whole = go("whole", "single", STEPS)
    left = go("left", saver, SAVED_AT)
    expected = weights(whole)
    for number, loader in enumerate(loaders):
        name = f"on-{number}"
        shutil.copytree(left, tmp_path / "runs" / name, symlinks=True)
        resumed = go(name, loader, STEPS)
        found = weights(resumed)
        assert found.keys() == expected.keys(), loader
        for key, value in expected.items():
            assert (found[key] - value).abs().max() < 1e-9, (loader, key)
        assert losses(resumed) == pytest.approx(losses(whole), rel=1e-9), loader


def test_E18_stages_go_on_as_one_process_and_one_process_as_stages(go, tmp_path):
    check_resumed(go, tmp_path, "pipeline 2", ["single", "pipeline 3"])
    assert len(list((tmp_path / "runs/left/checkpoints/last").glob("model-*-of-00002.*"))) == 2


@pytest.mark.slow
def test_slices_go_on_as_one_process_as_stages_and_in_other_numbers(go, tmp_path):
    check_resumed(go, tmp_path, "fsdp 2", ["single", "pipeline 2", "fsdp 3"])
    assert len(list((tmp_path / "runs/left/checkpoints/last").glob("model-*-of-00002.*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("saver", WAYS)
def test_E18_whatever_saved_a_run_anything_goes_on_with_it(go, tmp_path, saver):
    check_resumed(go, tmp_path, saver, WAYS)
    assert len(list((tmp_path / "runs").iterdir())) == 2 + len(WAYS)


def test_a_resumed_pipeline_keeps_the_cut_that_was_measured(train, tmp_path):
    words = (*WORDS, "strategy={name: pipeline, microbatches: 4}", "name=a")
    first = train(*words, "train.max_steps=2", processes=2)
    assert "expected speed-up" in first.output, first.output
    state = json.loads((tmp_path / "runs/a/checkpoints/last/state.json").read_text())
    cut = state["strategy"]["cuts"][0]
    path = tmp_path / "runs/a/checkpoints/last/state.json"
    again = train(*words, "train.max_steps=4", processes=2)
    assert f"note: cut before {cut}, as the run was before" in again.output, again.output
    assert json.loads(path.read_text())["strategy"] == {"layers": 5, "cuts": [cut]}


def test_a_resumed_pipeline_that_is_told_to_is_cut_elsewhere(train, tmp_path):
    words = (*WORDS, "name=a")
    for split, steps in ((1, 2), (4, 4)):
        strategy = f"strategy={{name: pipeline, split: [{split}]}}"
        ended = train(*words, strategy, f"train.max_steps={steps}", processes=2)
        assert f"2 stages of 5 layers, cut before {split} (layers.{split})" in ended.output


def test_only_the_first_and_the_last_stage_read_samples(train, tmp_path):
    ended = train(
        *WORDS,
        "task._target_=tests.staged.Watched",
        "strategy={name: pipeline, stages: 3, balance: params, memory_limit_gib: null}",
        "train.max_steps=3",
        processes=3,
    )
    assert ended.codes == [0, 0, 0], ended.output
    read = {path.name for path in tmp_path.glob("read-by-*.txt")}
    assert read == {"read-by-0.txt", "read-by-2.txt"}
