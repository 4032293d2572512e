"""Runs whose model no process ever holds as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


TEXT = (
    "task={_target_: launch.tasks.text.Text, width: 16, layers: 2, context: 16}",
    "train.global_batch_size=8",
    "log.every_steps=1",
    "evaluate.every_epochs=null",
)
STAGES = "strategy={name: pipeline, balance: flops, microbatches: 2, build: %s}"


def weights(folder: Path):
    found = {}
    for path in (folder / "checkpoints/last").glob("model-*.safetensors"):
        found |= load_file(path)
    return found


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_model_that_is_built_by_stages_trains_to_the_bits_of_one_built_whole(
    train, tmp_path, precision
):
    words = (*TEXT, f"train.precision={precision}", "train.max_steps=3")
    for build in ("whole", "stage"):
        ended = train(*words, STAGES % build, f"name={build}", processes=2)
        assert ended.codes == [0, 0], ended.output
    runs = tmp_path / "runs"
    assert same(weights(runs / "stage"), weights(runs / "whole"))


def test_it_goes_on_from_a_checkpoint_and_begins_with_weights_of_a_file(train, tmp_path):
    assert train(*TEXT, STAGES % "whole", "name=a", "train.max_steps=6", processes=2).codes == [
        0,
        0,
    ]
    for steps in (3, 6):
        ended = train(*TEXT, STAGES % "stage", "name=b", f"train.max_steps={steps}", processes=2)
        assert ended.codes == [0, 0], ended.output
    runs = tmp_path / "runs"
    assert same(weights(runs / "a"), weights(runs / "b"))
    for build in ("whole", "stage"):
        more = (f"name=from-{build}", "checkpoint.init_from=runs/a", "train.max_steps=2")
        ended = train(*TEXT, STAGES % build, *more, processes=2)
        assert ended.codes == [0, 0], ended.output
        assert "initial weights from" in ended.output
    assert same(weights(runs / "from-stage"), weights(runs / "from-whole"))


def test_a_model_whose_values_cannot_be_put_off_is_told_the_ways_to_go_on(train):
    words = ("task._target_=tests.staged.Seeded", "strategy={name: pipeline, build: stage}")
    ended = train(*words, "train.max_steps=1", processes=2)
    assert set(ended.codes) <= {1, 2}, ended.output
    assert "use strategy.build=whole" in ended.output
    assert "Traceback" not in ended.output
