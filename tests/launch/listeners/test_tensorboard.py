import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from launch.events import Notice, Picture, Scalar
from launch.listeners import TensorBoard
from launch.listeners.tensorboard import flatten


def files(facts):
    return sorted(facts.folder.glob("events.out.tfevents.*"))


def tell(facts, *events):
    """Write one attempt's file, and date it back: names have whole seconds."""
    board = TensorBoard(facts.folder)
    for event in events:
        board(event)
    board.close()
    number = len(files(facts))
    newest = max(files(facts), key=lambda path: path.stat().st_mtime_ns)
    parts = newest.name.split(".")
    parts[3] = f"{number:010d}"
    newest.rename(newest.with_name(".".join(parts)))


def read(facts):
    everything = {"scalars": 0, "tensors": 0, "images": 0}
    return EventAccumulator(str(facts.folder), size_guidance=everything).Reload()


def curve(found, tag):
    """Return (step, value) of a tag; new files hold old-style scalars."""
    return [(e.step, e.value) for e in found.Scalars(tag)]


def test_the_tags_and_steps_are_those_of_the_event(facts):
    tell(
        facts,
        facts.started(),
        facts.progress(10, metrics={"accuracy": 0.5}),
        facts.evaluated(10, loss=0.25, accuracy=0.75),
        Scalar(11, "ema/decay", 0.999),
        Notice("no curve"),
        facts.ended(10),
    )
    found = read(facts)
    values = {
        "train/loss": 0.1, "train/accuracy": 0.5, "train/lr": 0.002, "train/grad_norm": 0.5,
        "throughput/samples_per_s": 1234.0, "time/data": 0.001, "time/forward": 0.004,
        "time/backward": 0.005, "time/step": 0.01, "memory/peak_gib": 0.25, "rank/slowest": 1.0,
        "valid/loss": 0.25, "valid/accuracy": 0.75, "ema/decay": 0.999,
    }  # fmt: skip
    assert sorted(found.Tags()["scalars"]) == sorted(values)
    for tag, value in values.items():
        step = 11 if tag == "ema/decay" else 10
        assert curve(found, tag) == [(step, pytest.approx(value))]
    # version, config, interval, evaluation, three of hparams, scalar
    assert sum(1 for _ in EventFileLoader(str(files(facts)[0])).Load()) == 8


def test_while_warming_up_there_are_no_timings(facts):
    tell(facts, facts.started(), facts.progress(1, samples_per_s=None, time_s={}))
    tags = read(facts).Tags()["scalars"]
    assert "train/loss" in tags
    assert not [tag for tag in tags if tag.startswith(("time/", "throughput/"))]


def test_an_interval_is_on_the_disk_before_the_next(facts):
    board = TensorBoard(facts.folder)
    board(facts.started())
    for step in range(1, 4):
        board(facts.progress(step))
        assert [s for s, _ in curve(read(facts), "train/loss")] == list(range(1, step + 1))
    board.close()


def test_H1_a_run_that_goes_on_has_each_step_once_and_no_zigzag(facts):
    tell(facts, facts.started(), *map(facts.progress, range(1, 18)))
    tell(facts, facts.started(start_step=15), *map(facts.progress, range(16, 31)))
    assert [step for step, _ in curve(read(facts), "train/loss")] == list(range(1, 31))


def test_H2_the_first_step_after_going_on_is_the_next_in_every_tag(facts):
    tell(facts, facts.started(), *map(facts.progress, range(1, 18)), facts.evaluated(17))
    tell(facts, facts.started(start_step=15), facts.progress(16), facts.evaluated(16))
    found = read(facts)
    for tag in ("train/loss", "time/step", "throughput/samples_per_s", "rank/slowest"):
        assert [step for step, _ in curve(found, tag)] == list(range(1, 17))
    assert [step for step, _ in curve(found, "valid/loss")] == [16]


def test_H3_a_run_has_one_file_and_no_folder(facts):
    tell(facts, facts.started(), facts.progress(1), facts.evaluated(1), facts.ended(1))
    assert [p.is_file() for p in facts.folder.iterdir()] == [True]


def sessions(facts):
    """Ask TensorBoard's own hparams page for its table."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.backend_context import Context
    from tensorboard.plugins.hparams.list_session_groups import Handler

    runs = EventMultiplexer().AddRunsFromDirectory(str(facts.folder.parent)).Reload()
    provider = MultiplexerDataProvider(runs, str(facts.folder.parent))
    context = Context(TBContext(data_provider=provider))
    request = RequestContext()
    metadata = context.hparams_metadata(request, "")
    experiment = context.experiment_from_metadata(request, "", True, metadata, [])
    asked = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING, api_pb2.STATUS_UNKNOWN],
        slice_size=10,
        col_params=[api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos],
    )
    return Handler(request, context, "", asked).run().session_groups, sorted(runs.Runs())


def test_H6_hparams_are_one_entry_of_the_run_itself_whatever_the_config_holds(facts):
    tell(facts, facts.started(), facts.progress(1), facts.evaluated(1, loss=0.25), facts.ended(1))
    groups, runs = sessions(facts)
    assert runs == ["digits"]
    assert [group.name for group in groups] == ["digits"]
    shown = {
        name: value.string_value or value.number_value for name, value in groups[0].hparams.items()
    }
    assert shown["optimizer.lr"] == 0.002
    assert shown["task.sizes"] == "[1, 2]"
    assert shown["scheduler"] == "null"
    assert shown["train.compile"] == "false"
    assert shown["task._target_"] == "launch.tasks.digits.Digits"


def test_H7_metrics_of_hparams_are_scalars_and_going_on_adds_no_entry(facts):
    tell(facts, facts.started(), facts.progress(1), facts.evaluated(1, loss=0.5), facts.ended(1))
    tell(facts, facts.started(start_step=1), facts.progress(2), facts.evaluated(2, loss=0.25))
    groups, runs = sessions(facts)
    assert (runs, len(groups)) == (["digits"], 1)
    [metric] = groups[0].metric_values
    assert metric.name.tag == "valid/loss"
    assert metric.name.tag in read(facts).Tags()["scalars"]
    assert (metric.value, metric.training_step) == (0.25, 2)


def test_hparams_without_any_evaluation_show_the_loss(facts):
    tell(facts, facts.started(), facts.progress(4), facts.ended(4, metrics={}))
    groups, _ = sessions(facts)
    assert [(m.name.tag, m.value) for m in groups[0].metric_values] == [("train/loss", 0.25)]


def test_hparams_without_any_curve_are_not_written(facts):
    tell(facts, facts.started(), facts.ended(0, state="failed", metrics={}))
    assert read(facts).Tags()["scalars"] == []
    assert not [tag for tag in read(facts).Tags()["tensors"] if "hparams" in tag]


def test_H9_a_folder_with_two_files_shows_the_union(facts):
    tell(facts, facts.started(), *map(facts.progress, (1, 2, 3)))
    tell(facts, facts.started(start_step=3), *map(facts.progress, (4, 5)))
    assert len(files(facts)) == 2
    found = EventAccumulator(str(facts.folder)).Reload()  # as TensorBoard reads by default
    assert [step for step, _ in curve(found, "train/loss")] == [1, 2, 3, 4, 5]


def test_H10_three_thousand_points_are_all_in_the_file(facts):
    tell(facts, facts.started(), *map(facts.progress, range(1, 3001)))
    assert [step for step, _ in curve(read(facts), "train/loss")] == list(range(1, 3001))


def test_H11_a_fresh_start_in_the_folder_never_merges_two_curves(facts):
    tell(facts, facts.started(), *(facts.progress(s, loss=9.0) for s in range(1, 6)))
    tell(facts, facts.started(), *(facts.progress(s, loss=1.0) for s in range(1, 4)))
    assert curve(read(facts), "train/loss") == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_H11_what_is_not_finite_is_logged_as_such_and_stops_nothing(facts):
    losses = [1.0, math.nan, math.inf, -math.inf, 2.0]
    tell(facts, facts.started(), *(facts.progress(s, loss=v) for s, v in enumerate(losses, 1)))
    found = curve(read(facts), "train/loss")
    assert [step for step, _ in found] == [1, 2, 3, 4, 5]
    assert [str(value) for _, value in found] == ["1.0", "nan", "inf", "-inf", "2.0"]


def test_the_config_is_shown_as_text(facts):
    tell(facts, facts.started(config_text="seed: 0\ntask: x"))
    [event] = read(facts).Tensors("config/text_summary")
    assert event.tensor_proto.string_val[0].decode() == "```yaml\nseed: 0\ntask: x\n```"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_kept_with_their_pixels(facts, channels, dtype):
    pixels = torch.zeros(channels, 4, 6, dtype=dtype)
    pixels[:, 0, 0] = 1
    pixels[:, 1, 1] = float("nan")
    tell(facts, facts.started(), Picture(7, "samples", pixels))
    [image] = read(facts).Images("samples")
    assert (image.step, image.width, image.height) == (7, 6, 4)


def test_before_the_start_and_after_the_end_nothing_is_written(facts):
    board = TensorBoard(facts.folder)
    board(facts.ended(0, state="failed"))
    board.close()
    board(facts.progress(1))
    assert list(facts.folder.iterdir()) == []


def test_a_config_is_flattened_to_numbers_and_text():
    config = {"a": {"b": {"c": 1}, "d": {}}, "e": None, "f": [1, {"g": 2}], "h": "x", "i": True}
    assert dict(flatten(config)) == {
        "a.b.c": 1, "a.d": "{}", "e": "null", "f": '[1, {"g": 2}]', "h": "x", "i": "true",
    }  # fmt: skip
