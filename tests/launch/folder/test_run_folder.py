import json
import os

import pytest
from omegaconf import OmegaConf

from launch.folder import FolderError, inspect, open_folder

CONFIG = {
    "name": "digits",
    "seed": 0,
    "task": {"_target_": "launch.tasks.digits.Digits", "width": 32},
    "train": {"epochs": 20, "max_steps": None, "max_minutes": 1e-5, "global_batch_size": 64},
    "data": {"workers": 0, "drop_last": False},
}
TEXT = OmegaConf.to_yaml(CONFIG)


def changed(key, value):
    config = OmegaConf.create(CONFIG)
    OmegaConf.update(config, key, value)
    return OmegaConf.to_container(config)


def a_run(path, **status):
    """Leave behind what a run leaves."""
    with open_folder(path) as folder:
        folder.write_config(TEXT)
        if status:
            folder.status.write_text(json.dumps(status))
    return folder


def test_a_folder_is_made_with_its_parents_and_says_where_things_lie(tmp_path):
    with open_folder(tmp_path / "runs" / "digits") as folder:
        folder.write_config(TEXT)
        assert folder.config.read_text() == TEXT
        assert folder.ranks.is_dir()
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()
    names = sorted(p.name for p in folder.path.iterdir())
    assert names == ["config.yaml", "ranks"]
    assert folder.checkpoints == tmp_path / "runs" / "digits" / "checkpoints"
    assert (folder.metrics.name, folder.status.name, folder.stop.name) == (
        "metrics.jsonl", "status.json", "STOP",
    )  # fmt: skip


def test_absent_and_empty_folders_are_new_and_looking_changes_nothing(tmp_path):
    assert inspect(tmp_path / "absent", CONFIG).state == "new"
    assert inspect(tmp_path, CONFIG).state == "new"
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_before_its_config_was_written_is_new(tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "lock").write_text("")
    (tmp_path / "slurm-12.out").write_text("")
    assert inspect(tmp_path, CONFIG).state == "new"


def test_a_completed_run_is_told_with_its_numbers_and_limits(tmp_path):
    metrics = {"valid/accuracy": 0.97}
    a_run(tmp_path, state="completed", step=460, epoch=20, reason="20 epochs", metrics=metrics)
    found = inspect(tmp_path, CONFIG)
    assert (found.state, found.step, found.epoch) == ("completed", 460, 20)
    assert found.metrics == metrics
    assert found.limits == {"epochs": 20, "max_steps": None, "max_minutes": 1e-5}


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_any_other_end_may_go_on(tmp_path, state):
    a_run(tmp_path, state=state, step=17, epoch=1, reason="SIGTERM", metrics={})
    found = inspect(tmp_path, CONFIG)
    assert (found.state, found.last, found.step, found.reason) == (
        "interrupted", state, 17, "SIGTERM",
    )  # fmt: skip


@pytest.mark.parametrize("status", [None, "", "[1]", '{"state": '])
def test_a_run_with_no_readable_status_may_go_on(tmp_path, status):
    folder = a_run(tmp_path)
    if status is not None:
        folder.status.write_text(status)
    assert (inspect(tmp_path, CONFIG).state, inspect(tmp_path, CONFIG).last) == (
        "interrupted",
        None,
    )


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("task.width", 64, r"task\.width: 32 there, 64 here"),
        ("task.depth", 3, r"task\.depth: absent there, 3 here"),
        (
            "task._target_",
            "mine.Task",
            r'_target_: "launch.tasks.digits.Digits" there, "mine.Task"',
        ),
        ("seed", 1, r"seed: 0 there, 1 here"),
        ("data.drop_last", True, r"data\.drop_last: false there, true here"),
        ("train.global_batch_size", 32, r"train\.global_batch_size: 64 there, 32 here"),
    ],
)
def test_H11_another_experiment_is_refused_with_both_values_and_a_free_name(
    tmp_path, key, value, words
):
    a_run(tmp_path / "digits", state="stopped", step=3)
    (tmp_path / "digits-2").mkdir()
    with pytest.raises(FolderError, match=words) as error:
        inspect(tmp_path / "digits", changed(key, value))
    assert "name=digits-3" in str(error.value)


def test_a_default_stands_for_what_nobody_wrote_on_either_side(tmp_path):
    a_run(tmp_path, state="stopped", step=3)
    assert inspect(tmp_path, changed("task.depth", 3), {"depth": 3}).state == "interrupted"
    assert inspect(tmp_path, changed("task.depth", 3.0), {"depth": 3}).state == "interrupted"
    assert inspect(tmp_path, CONFIG, {"width": 64, "depth": 3}).state == "interrupted"
    with pytest.raises(FolderError, match=r"task\.depth: 3 there, 4 here"):
        inspect(tmp_path, changed("task.depth", 4), {"depth": 3})
    with pytest.raises(FolderError, match=r"task\.on: 1 there, true here"):
        inspect(tmp_path, changed("task.on", True), {"on": 1})
    with pytest.raises(FolderError, match=r'digits.Digits" there, "mine.Task" here'):
        inspect(tmp_path, changed("task._target_", "mine.Task"), {"width": 32})


@pytest.mark.parametrize(
    ("key", "value"), [("train.epochs", 40), ("data.workers", 2), ("name", "x"), ("optimizer", {})]
)
def test_everything_else_may_change(tmp_path, key, value):
    a_run(tmp_path)
    found = inspect(tmp_path, changed(key, value))
    assert found.state == "interrupted"
    assert len(found.changes) == (1 if key in ("train.epochs", "data.workers") else 0)


def test_what_changed_is_told_with_both_values(tmp_path):
    a_run(tmp_path)
    assert inspect(tmp_path, changed("train.epochs", 40)).changes == ("train.epochs=40 (was 20)",)


@pytest.mark.parametrize(
    ("key", "there", "here", "said"),
    [
        ("best", {"metric": "a"}, None, 'checkpoint.best=null (was {"metric": "a"})'),
        ("best", None, {"metric": "a"}, 'checkpoint.best={"metric": "a"} (was null)'),
        ("best", {"metric": "a"}, {"metric": "b"}, 'checkpoint.best.metric="b" (was "a")'),
        ("keep", "absent", 3, "checkpoint.keep=3 (was absent)"),
        ("keep", 3, "absent", "checkpoint.keep=absent (was 3)"),
        ("keep", None, "absent", None),
        ("keep", {}, None, None),
    ],
)
def test_keys_that_one_side_lacks_and_groups_that_come_and_go_are_told(
    tmp_path, key, there, here, said
):
    saved, wanted = (
        {**CONFIG, "checkpoint": {key: value} if value != "absent" else {}}
        for value in (there, here)
    )
    with open_folder(tmp_path) as folder:
        folder.write_config(OmegaConf.to_yaml(OmegaConf.create(saved)))
    assert inspect(tmp_path, wanted).changes == ((said,) if said else ())


def test_a_folder_in_which_nothing_was_learnt_takes_a_corrected_task(tmp_path):
    a_run(tmp_path, state="failed", step=0)
    assert inspect(tmp_path, changed("task.width", 64)).state == "new"
    (tmp_path / "checkpoints/step-00000003").mkdir(parents=True)
    with pytest.raises(FolderError, match="holds another experiment"):
        inspect(tmp_path, changed("task.width", 64))


def test_a_file_and_a_path_under_a_file_are_refused(tmp_path):
    (tmp_path / "digits").write_text("mine")
    for path in (tmp_path / "digits", tmp_path / "digits" / "below"):
        with pytest.raises(FolderError, match="is a file, or lies under one; use name="):
            inspect(path, CONFIG)


def test_a_link_to_nothing_is_refused(tmp_path):
    (tmp_path / "digits").symlink_to("gone")
    with pytest.raises(FolderError, match="is a link to nothing"):
        inspect(tmp_path / "digits", CONFIG)


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(
        FolderError, match=r"is not a run folder: it holds thesis\.tex but no config"
    ):
        inspect(tmp_path, CONFIG)


def lost_config(path, as_folder):
    folder = a_run(path, state="stopped", step=3)
    folder.config.unlink()
    if as_folder:
        folder.config.mkdir()
    (folder.checkpoints / "step-00000003").mkdir(parents=True)
    (folder.checkpoints / "step-00000003/MANIFEST.json").write_text("{}")


def test_a_run_that_lost_its_config_is_told_the_ways_back(tmp_path):
    lost_config(tmp_path / "digits", as_folder=False)
    words = r"digits holds a run's checkpoints but no config\.yaml; bring that back from a copy, or"
    with pytest.raises(FolderError, match=words) as error:
        inspect(tmp_path / "digits", CONFIG)
    assert str(error.value).endswith(f" name=digits-2 checkpoint.resume={tmp_path / 'digits'}")


def test_a_folder_in_the_place_of_the_config_is_said_to_be_one(tmp_path):
    lost_config(tmp_path / "digits", as_folder=True)
    with pytest.raises(FolderError, match=r"config\.yaml is a folder, wanted the") as error:
        inspect(tmp_path / "digits", CONFIG)
    assert "but no config.yaml" not in str(error.value)


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "", "\x00"])
def test_an_unreadable_config_is_refused(tmp_path, text):
    a_run(tmp_path).config.write_text(text)
    with pytest.raises(
        FolderError, match=r"cannot read .*config\.yaml.*mend it, or start anew: name="
    ):
        inspect(tmp_path, CONFIG)


def test_a_second_attempt_in_the_same_folder_replaces_the_config(tmp_path):
    a_run(tmp_path)
    with open_folder(tmp_path) as folder:
        folder.write_config(TEXT.replace("epochs: 20", "epochs: 40"))
    assert inspect(tmp_path, CONFIG).limits["epochs"] == 40
