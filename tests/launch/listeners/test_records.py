import json
import math
import os
import resource

from launch.events import CheckpointSaved, Notice
from launch.listeners import Records


def read(facts):
    def refuse(word):
        raise ValueError(word)

    text = (facts.folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def steps(facts, *kinds):
    return [line["step"] for line in read(facts) if line["event"] in kinds]


def tell(facts, *events):
    records = Records(facts.folder)
    for event in events:
        records(event)
    records.close()


def test_each_event_is_a_line_at_once(facts):
    records = Records(facts.folder)
    for count, event in enumerate(
        [
            facts.started(),
            facts.progress(10, metrics={"accuracy": 0.5}),
            facts.evaluated(10, loss=0.25),
            CheckpointSaved(10, 0, facts.folder / "checkpoints/step-00000010", 0.1),
            facts.ended(10),
        ],
        start=1,
    ):
        records(event)
        assert len(read(facts)) == count  # before close: flushed
    records(Notice("not recorded"))
    records.close()
    start, step, evaluation, checkpoint, end = read(facts)
    assert (start["event"], start["world_size"], start["versions"]) == (
        "start", 2, {"torch": "2.13.0"},
    )  # fmt: skip
    assert step == {
        "event": "step", "step": 10, "epoch": 0, "loss": 0.1, "lr": 0.002, "grad_norm": 0.5,
        "samples_per_s": 1234.0,
        "time_s": {"data": 0.001, "forward": 0.004, "backward": 0.005, "step": 0.01},
        "peak_gib": 0.25, "slowest_rank": 1, "metrics": {"accuracy": 0.5}, "skipped": 0,
    }  # fmt: skip
    assert (evaluation["event"], evaluation["split"], evaluation["samples"]) == (
        "evaluation", "valid", 360,
    )  # fmt: skip
    assert evaluation["metrics"] == {"loss": 0.25}
    assert checkpoint["path"].endswith("checkpoints/step-00000010")
    assert (end["event"], end["state"], end["metrics"]) == (
        "end", "completed", {"valid/accuracy": 0.9722},
    )  # fmt: skip


def test_what_is_not_finite_is_null_in_strict_json(facts):
    nan = float("nan")
    tell(
        facts,
        facts.started(),
        facts.progress(10, loss=nan, grad_norm=math.inf, time_s={"step": -math.inf}),
        facts.evaluated(10, loss=nan),
    )
    _, step, evaluation = read(facts)
    assert (step["loss"], step["grad_norm"], step["time_s"]) == (None, None, {"step": None})
    assert evaluation["metrics"] == {"loss": None}


def test_H1_a_run_that_goes_on_has_each_step_once(facts):
    tell(facts, facts.started(), *map(facts.progress, range(1, 18)), facts.evaluated(15))
    tell(facts, facts.started(start_step=15), *map(facts.progress, range(16, 31)))
    assert steps(facts, "step") == list(range(1, 31))
    assert steps(facts, "evaluation") == [15]
    assert steps(facts, "start") == [0, 15]


def test_H2_the_first_step_after_going_on_is_the_next_one(facts):
    tell(facts, facts.started(), *map(facts.progress, (5, 10, 15, 20)), facts.ended(20))
    tell(facts, facts.started(start_step=15), facts.progress(16), facts.evaluated(16))
    assert steps(facts, "step", "evaluation", "end") == [5, 10, 15, 16, 16]


def test_a_fresh_start_keeps_nothing_of_an_attempt_without_checkpoint(facts):
    tell(facts, facts.started(), *map(facts.progress, (1, 2, 3)), facts.ended(3, state="failed"))
    tell(facts, facts.started(), facts.progress(1))
    assert steps(facts, "step", "end") == [1]


def test_a_line_broken_off_by_a_kill_is_dropped(facts):
    tell(facts, facts.started(), facts.progress(1))
    whole = (facts.folder / "metrics.jsonl").read_bytes()
    for broken in (b'{"event": "step", "st', b'{"step": 1}', b"\x00\x00\xff\n", b"[]\n"):
        (facts.folder / "metrics.jsonl").write_bytes(whole + broken)
        tell(facts, facts.started(start_step=1), facts.progress(2))
        assert steps(facts, "step") == [1, 2]
    assert [p.name for p in facts.folder.iterdir()] == ["metrics.jsonl"]


def test_a_run_that_fails_before_its_start_is_recorded_after_the_earlier_lines(facts):
    tell(facts, facts.started(), facts.progress(1))
    tell(facts, facts.ended(0, state="failed", reason="no data"))
    assert [line["event"] for line in read(facts)] == ["start", "step", "end"]


def test_the_commit_is_told_in_a_git_tree_only(facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tell(facts, facts.started())
    assert read(facts)[-1]["git"] is None
    for name in ("objects", "refs"):
        (tmp_path / ".git" / name).mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("1234567890" * 4 + "\n")
    tell(facts, facts.started())
    assert read(facts)[-1]["git"] == "1234567890" * 4
    monkeypatch.setenv("PATH", "")
    tell(facts, facts.started())
    assert read(facts)[-1]["git"] is None


def test_D23_a_full_disk_is_told_with_the_path_and_the_file_mended_later(facts):
    tell(facts, facts.started(), facts.progress(1))
    size = (facts.folder / "metrics.jsonl").stat().st_size
    pid = os.fork()
    if pid == 0:
        records = Records(facts.folder)
        records(facts.started(start_step=1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, -1))
        try:
            while True:
                records(facts.progress(2))
        except OSError as error:
            told = "File too large" in str(error) and "metrics.jsonl" in str(error)
            records.close()
            os._exit(0 if told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    tell(facts, facts.started(start_step=1), facts.progress(2))
    assert steps(facts, "step") == [1, 2]
