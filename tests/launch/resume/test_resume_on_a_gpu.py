"""What only a GPU can show of resuming: its generator, its scaler, copies that nobody waits for."""

from __future__ import annotations

import pytest
import torch

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not GPUS, reason="needs a GPU")]


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_stopped_and_resumed_the_bytes_are_those_of_a_straight_run(
    train, left, noisy, precision, asynchronous
):
    words = (*noisy, "train.deterministic=true", f"train.precision={precision}")
    words = (*words, f"checkpoint.asynchronous={asynchronous}", "checkpoint.every_steps=2")
    assert train(*words, "train.max_steps=13", "name=straight").codes == [0]
    for stop in (9, 11, 13):
        assert train(*words, f"train.max_steps={stop}", "name=again").codes == [0]
    straight, again = left("straight"), left("again")
    assert "cuda" in straight.state["generators"][0]
    assert again.bytes() == straight.bytes()


def test_a_run_of_a_gpu_goes_on_without_one(train, left, noisy):
    assert train(*noisy, "train.max_steps=5", "name=again").codes == [0]
    assert train(*noisy, "train.max_steps=9", "name=again", "launch.device=cpu").codes == [0]
    assert left("again").lines("start")[-1]["step"] == 5
