"""Whole runs whose model is divided over the processes."""

import json

import pytest
from safetensors.torch import load_file

WORDS = (
    "strategy.name=fsdp",
    "train.epochs=2",
    "train.precision=float64",
    "optimizer={_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9}",
    "task.batch_norm=false",
    "log.every_steps=5",
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def judged(path):
    return [line["metrics"] for line in lines(path) if line["event"] == "evaluation"]


def losses(path):
    return [line["loss"] for line in lines(path) if line["event"] == "step"]


def test_two_processes_train_judge_and_save_as_one(train, tmp_path):
    ended = train(*WORDS, "name=two", processes=2)
    assert ended.codes == [0, 0], ended.output
    alone = train(*WORDS, "strategy.name=single", "name=one")
    assert alone.codes == [0], alone.output
    two, one = tmp_path / "runs/two", tmp_path / "runs/one"
    assert losses(two / "metrics.jsonl") == pytest.approx(losses(one / "metrics.jsonl"), rel=1e-9)
    for found, expected in zip(
        judged(two / "metrics.jsonl"), judged(one / "metrics.jsonl"), strict=True
    ):
        assert found == pytest.approx(expected, rel=1e-9)
    last = two / "checkpoints/last"
    shards = [load_file(path) for path in sorted(last.glob("model-*.safetensors"))]
    expected = load_file(one / "checkpoints/last/model.safetensors")
    assert len(shards) == 2
    assert shards[0].keys() | shards[1].keys() == expected.keys()
    for name, tensor in (shards[0] | shards[1]).items():
        assert (tensor - expected[name]).abs().max() < 1e-9


def test_more_processes_than_batches_to_judge(train, tmp_path):
    """Of 297 samples one batch: two of three processes borrow it."""
    ended = train(*WORDS, "train.max_steps=2", "evaluate.batch_size=400", "name=a", processes=3)
    assert ended.codes == [0, 0, 0], ended.output
    [line] = [x for x in lines(tmp_path / "runs/a/metrics.jsonl") if x["event"] == "evaluation"]
    assert line["samples"] < 400


def test_a_block_that_is_not_there_is_a_usage_error(train):
    ended = train(*WORDS, "strategy.blocks=[layer]", processes=2)
    assert ended.codes == [2, 2]
    assert "strategy.blocks: the model has no module 'layer' with parameters" in ended.output
    assert "Traceback" not in ended.output


def test_a_gradient_that_is_nan_on_one_rank_skips_one_step_on_all(train, tmp_path):
    fault = ("fault.kind=nan", "fault.rank=1", "fault.step=3")
    ended = train(*WORDS, *fault, "train.max_steps=6", "log.every_steps=1", "name=a", processes=2)
    assert ended.codes == [0, 0], ended.output
    state = json.loads((tmp_path / "runs/a/checkpoints/last/state.json").read_text())
    assert state["skipped"] == 1


def test_streams_end_for_all_ranks_whatever_each_has_left(train, tmp_path):
    """Of 11 numbers a step: rounds of 2 and 2 and 1, of 1 and none, and the borrowed."""
    words = (
        "task={_target_: tests.staged.Waves, stream: true, samples: 25}",
        "train.global_batch_size=11",
        "train.accumulate=2",
        "train.epochs=2",
        "train.precision=float64",
        "optimizer={_target_: torch.optim.SGD, lr: 1e-4}",
        "log.every_steps=1",
    )
    ended = train(*words, "strategy.name=fsdp", "name=three", processes=3)
    assert ended.codes == [0, 0, 0], ended.output
    alone = train(*words, "strategy.name=single", "name=one")
    assert alone.codes == [0], alone.output
    three, one = (losses(tmp_path / f"runs/{name}/metrics.jsonl") for name in ("three", "one"))
    assert len(three) == 6
    assert three == pytest.approx(one, rel=1e-9)
