"""What becomes of a run whose folder goes while it trains."""

from __future__ import annotations

import json
import re

import pytest

RUN = (
    "task._target_=tests.tasks.Gone",
    "train.global_batch_size=8",
    "train.max_steps=9",
    "checkpoint.every_epochs=null",
    "name=a",
)
SAID = {
    "removed": "the run folder runs/a was removed, or moved away, while the run went on",
    "another's": "the run folder runs/a was removed, or moved away, while the run went on",
    "moved": "the run folder runs/a was moved to {elsewhere} while the run went on; the last whole "
    "checkpoint is in {elsewhere}/checkpoints: move the folder back, and give the same command",
    "no config": "runs/a/config.yaml was removed while the run went on",
}


@pytest.mark.parametrize("asynchronous", ["false", "true"])
@pytest.mark.parametrize(
    ("how", "processes"), [("removed", 1), ("removed", 2), ("moved", 2), ("another's", 1)]
)
def test_a_run_whose_folder_goes_ends_at_the_next_checkpoint_in_one_line(
    train, tmp_path, how, processes, asynchronous
):
    more = ("checkpoint.every_steps=2", f"checkpoint.asynchronous={asynchronous}")
    ended = train(*RUN, *more, f"task.how={how}", processes=processes, timeout_s=40)
    assert ended.codes == [1] * processes, ended.output
    said = SAID[how].format(elsewhere=tmp_path / "elsewhere")
    assert "while the run went on" in ended.output, ended.output
    [line] = [line for line in ended.output.splitlines() if "while the run went on" in line]
    assert re.match(f"the run failed after step [34]: {re.escape(said)}", line)
    assert ended.outputs[0].splitlines()[-1] == line
    assert "completed" not in ended.output
    left = [p.name for p in (tmp_path / "runs").rglob("*")]
    assert left == (["a", "config.yaml"] if how == "another's" else [])


@pytest.mark.parametrize("how", ["removed", "moved", "no config"])
def test_a_run_whose_folder_goes_after_its_last_checkpoint_is_not_completed(train, tmp_path, how):
    words = ("task.gone_at=9", "checkpoint.every_steps=4", "checkpoint.on_error=go_on")
    ended = train(*RUN, *words, f"task.how={how}")
    assert ended.codes == [1], ended.output
    assert SAID[how].format(elsewhere=tmp_path / "elsewhere") in ended.output.splitlines()[-1]
    assert "completed" not in ended.output
    assert (tmp_path / "runs/a").exists() == (how == "no config")


def test_a_folder_that_was_moved_and_brought_back_goes_on(train, tmp_path):
    more = ("checkpoint.every_steps=2", "task.how=moved")
    assert train(*RUN, *more).codes == [1]
    (tmp_path / "elsewhere").rename(tmp_path / "runs/a")
    ended = train(*RUN, *more)
    assert ended.codes == [0], ended.output
    assert "going on after step 2" in ended.output


def test_a_lock_that_was_deleted_by_hand_is_no_error(train, tmp_path):
    ended = train(*RUN, "checkpoint.every_steps=2", "task.how=no lock", processes=2)
    assert ended.codes == [0, 0], ended.output
    assert json.loads((tmp_path / "runs/a/status.json").read_text())["state"] == "completed"
