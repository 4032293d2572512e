"""Tasks and strategies from settings."""

import pytest
from torch import nn

from launch.config import ConfigError, build_strategy, build_task, load
from parallel import DDP, Single, UsageError


def typed(**keys):
    return {"_target_": "mine.Typed", "path": "p", "width": 2, **keys}


@pytest.fixture(autouse=True)
def _module(mine):
    """Every test here may name ``mine``."""


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ({"width": "4"}, "width", 4),
        ({"tags": ["a", "b"]}, "tags", ["a", "b"]),
        ({"pair": [1, 2]}, "pair", (1.0, 2.0)),
        ({"mode": "none"}, "mode", "none"),
        ({"seen": None}, "seen", None),
        ({"anything": {"_target_": "kept.AsIs"}}, "anything", {"_target_": "kept.AsIs"}),
        ({"spec": {"_target_": "kept.AsIs"}}, "spec", {"_target_": "kept.AsIs"}),
        ({"note": "${literal}"}, "note", "${literal}"),
    ],
)
def test_a_tasks_keys_have_the_types_of_its_fields(keys, name, value):
    met = getattr(build_task(typed(**keys)), name)
    assert met == value
    assert type(met) is type(value)


def test_a_dataclass_inside_a_task_is_made():
    task = build_task(typed(crop={"size": "3"}))
    assert (task.crop.size, task.crop.mode) == (3, "edge")


def test_a_module_that_a_field_wants_is_built():
    net = {"_target_": "torch.nn.Linear", "in_features": 1, "out_features": 1}
    assert isinstance(build_task(typed(net=net)).net, nn.Linear)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"width": 2.5}, "task.width: wanted a whole number, met 2.5"),
        ({"widht": 3}, "there is no key task.widht; did you mean 'task.width'"),
        ({"depth": 0}, "task.depth: wanted a whole number of at least 1, met 0; the default is"),
        ({"kind": "bg"}, "task.kind: wanted big or small, met 'bg'; did you mean 'big'"),
        ({"mode": "half"}, "task.mode: wanted 'none' or 'full', met 'half'"),
        ({"pair": [1, "x"]}, r"task.pair: wanted a list \(tuple\[float, float\]\), met"),
        ({"tags": 3}, r"task.tags: wanted a list \(list\[str\]\), met 3"),
        ({"crop": {"sze": 1}}, "no key task.crop.sze(.|\n)*Crop needs task.crop.size"),
        ({"crop": 3}, "task.crop: wanted keys and values or null, met 3; type task.crop.size="),
        ({"width": 13}, r"task: Typed raised ValueError: 13 brings no luck \(.*mine\.py:\d+\)"),
    ],
)
def test_a_tasks_wrong_key_is_refused(keys, said):
    with pytest.raises(ConfigError, match=said):
        build_task(typed(**keys))


def test_all_that_a_task_needs_is_listed_at_once():
    with pytest.raises(ConfigError, match=r"Typed needs task.path, task.width; type task.path="):
        build_task({"_target_": "mine.Typed"})


def test_a_task_need_be_no_dataclass():
    task = build_task(
        {"_target_": "mine.Plain", "label": "x", "net": {"_target_": "torch.nn.ReLU"}}
    )
    assert isinstance(task.net, nn.ReLU)
    assert build_task({"_target_": "mine.Own", "label": "x"}).label == "x"
    with pytest.raises(ConfigError, match=r"no key task.lable; did you mean 'task.label'"):
        build_task({"_target_": "mine.Own", "lable": "x"})


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "torch.nn.Linear",
            r"task: wanted a Task \(launch.task\); torch.nn.Linear is another class",
        ),
        ("mine.Unfinished", "Unfinished raised TypeError: .*abstract class Unfinished"),
        (None, "task does not say what to build"),
    ],
)
def test_what_is_no_task_is_refused(target, said):
    with pytest.raises(ConfigError, match=said):
        build_task({"_target_": target})


def test_a_tasks_text_is_kept_as_typed(write):
    text = "{_target_: mine.Typed, path: 007, width: 3, note: 1e5, tags: [on, 007], mode: none}"
    from_file = load([write("a.yaml", f"task: {text}")]).task
    words = [
        "path=007",
        "width=3",
        "note=1e5",
        "tags=[on, 007]",
        "mode=none",
        "_target_=mine.Typed",
    ]
    from_words = load([], [f"task.{word}" for word in words]).task
    assert from_file == from_words
    task = build_task(from_file)
    assert (task.path, task.width, task.note) == ("007", 3, "1e5")
    assert (task.tags, task.mode) == (["on", "007"], "none")


def test_text_inside_what_a_task_names_is_kept_too():
    loss = "{_target_: torch.nn.CrossEntropyLoss, reduction: none, weight: null}"
    task = load([], [f"task.loss={loss}"]).task
    assert task["loss"] == {**task["loss"], "reduction": "none", "weight": None}


def test_where_null_may_be_meant_the_word_is_refused():
    words = ["task._target_=mine.Typed", "task.seen=None"]
    with pytest.raises(ConfigError, match=r"task.seen=None: type null where nothing is meant"):
        load([], words)


def test_what_cannot_be_imported_is_left_to_the_building_to_say():
    task = load([], ["task={_target_: nowhere.Task, modes: [none], more: {mode: none}}"]).task
    with pytest.raises(ConfigError, match="there is no module 'nowhere'"):
        build_task(task)


@pytest.mark.parametrize(
    ("settings", "world_size", "strategy"),
    [
        ({"name": "auto"}, 1, Single()),
        ({"name": "auto"}, 2, DDP()),
        ({"name": "ddp", "bucket_mb": 5}, 2, DDP(bucket_mb=5.0)),
    ],
)
def test_a_strategy_is_found_by_its_name(settings, world_size, strategy):
    assert build_strategy(settings, world_size) == strategy


def test_a_strategy_may_be_the_users_own():
    assert build_strategy({"_target_": "mine.Mine", "parts": "3"}, 2).parts == 3


@pytest.mark.parametrize(
    ("settings", "world_size", "said"),
    [
        ({"name": "dpd"}, 2, "wanted auto, single, .*, met 'dpd'; did you mean 'ddp'"),
        ({"name": "zzz"}, 2, "met 'zzz'; for your own type strategy._target_=module.Name"),
        ({}, 2, "strategy.name: wanted auto, single, data_parallel, ddp.*, met null"),
        (
            {"name": "ddp", "bucket": 5},
            2,
            "did you mean 'strategy.bucket_mb'.*known here: bucket_mb",
        ),
        (
            {"name": "auto", "x": 5},
            1,
            "auto has no keys of its own, met strategy.x; .*strategy.name=ddp",
        ),
        ({"name": "ddp", "bucket_mb": "big"}, 2, "strategy.bucket_mb: wanted a number, met 'big'"),
        ({"name": "single"}, 2, "trains in one process, but 2 were started"),
        ({"_target_": "mine.Typed"}, 2, r"strategy: wanted a Strategy .*; mine.Typed is another"),
    ],
)
def test_what_is_no_strategy_for_these_processes_is_refused(settings, world_size, said):
    with pytest.raises(UsageError, match=said):
        build_strategy(settings, world_size)
