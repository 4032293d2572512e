from dataclasses import replace

import pytest

from launch.comparison.advice import advise
from launch.comparison.table import Line, lines


def line(name, step_s=None, speed_up=None, gib=None, *, turns=6, **facts):
    strategy = name.partition(" ")[0]
    facts = {"devices": 1 if strategy == "single" else 2, "batch": 100, **facts}
    spread = {} if step_s is None else {"low_s": 0.9 * step_s, "high_s": 1.1 * step_s}
    counted = 0 if step_s is None else turns
    return Line(
        name, strategy=strategy, is_reference=strategy == "single", step_s=step_s, turns=counted,
        speed_up=speed_up, peak_gib=gib, **spread, **facts,
    )  # fmt: skip


SINGLE = line("single", 0.0012, 1.0, 1.0)
SLOW = line("single", 1.2, 1.0, 1.9)
DDP = line("ddp", 0.652, 1.84, 2.0)
PIPELINE = line("pipeline m=8", 0.916, 1.31, 1.14)


def near(row, *names):
    return replace(row, alike=names)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "no row was measured"),
        (
            [line("single", note="out of\nmemory"), line("ddp")],
            "no row was measured; single: out of memory; ddp: not run",
        ),
        (
            [SINGLE, line("ddp", note="killed by SIGKILL")],
            "only single was measured, 1.20 ms a step: there is nothing to compare it with; "
            "ddp: killed by SIGKILL",
        ),
        (
            [SLOW, DDP, PIPELINE],
            "ddp: 1.84x on 2 devices; pipeline m=8 needs 43 % less memory per device and is 1.31x",
        ),
        (
            [SLOW, DDP, PIPELINE, line("pipeline m=4", 1.0, 1.2, 1.12)],  # as lean, but slower
            "ddp: 1.84x on 2 devices; pipeline m=8 needs 43 % less memory per device and is 1.31x",
        ),
        (
            [replace(SLOW, peak_gib=1.9), DDP],
            "ddp: 1.84x on 2 devices; no other row needs 10 % less memory per device",
        ),
        ([replace(SLOW, peak_gib=None), DDP], "ddp: 1.84x on 2 devices"),
        (
            [SLOW, DDP, line("ddp wide", 0.1, 9.0, 0.1, is_scaled=True)],
            "ddp: 1.84x on 2 devices; no other row needs 10 % less memory per device",
        ),
        (
            [replace(SLOW, turns=1), replace(DDP, turns=1, peak_gib=None)],
            "ddp: 1.84x on 2 devices; from one round only",
        ),
        (
            [
                line("single", note="out of memory"),
                line("fsdp", 1.304, None, 2.0),
                line("ddp", 0.652, None, 2.0),
            ],
            "ddp: 652 ms a step on 2 devices, 2.00x as fast as fsdp; "
            "no other row needs 10 % less memory per device; single: out of memory",
        ),
        (
            [line("ddp", 0.652, None, 2.0), line("fsdp", 1.304, None, 1.0)],
            "ddp: 652 ms a step on 2 devices, 2.00x as fast as fsdp; "
            "fsdp needs 50 % less memory per device and takes 1.30 s a step",
        ),
    ],
)
def test_the_fastest_row_is_named_with_its_lead_and_its_price(rows, sentence):
    assert advise(rows) == sentence


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            line("ddp", 0.0021, 0.57, 1.0, communication=0.4286, data=0.1),
            "single: a step takes 1.20 ms, with ddp 2.10 ms, 0.900 ms of it communication; "
            "no other row needs 10 % less memory per device",
        ),
        (
            line("pipeline", 0.002, 0.6, 0.5, communication=0.1, bubble=0.4),
            "single: a step takes 1.20 ms, with pipeline 2.00 ms, 0.800 ms of it idle in the "
            "bubble; pipeline needs 50 % less memory per device and is 0.600x",
        ),
        (
            line("ddp", 0.002, 0.6, data=0.5, communication=0.2),
            "single: a step takes 1.20 ms, with ddp 2.00 ms, 1.00 ms of it waiting for data",
        ),
        (
            line("ddp", 0.002, 0.6, communication=0.01),
            "single: a step takes 1.20 ms, with ddp 2.00 ms",
        ),
    ],
)
def test_where_the_reference_wins_the_advice_says_what_others_spend(other, sentence):
    assert advise([SINGLE, other]) == sentence


def test_the_reason_comes_from_the_first_row_that_shows_one():
    threads = line("all cores, one process", 0.0015, 0.8)
    ddp = line("ddp", 0.0021, 0.57, communication=0.4286)
    assert advise([SINGLE, ddp, threads]) == (
        "single: a step takes 1.20 ms, with ddp 2.10 ms, 0.900 ms of it communication"
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [near(DDP, "fsdp"), near(line("fsdp", 0.7, 1.71, 1.9), "ddp")],  # 5 % leaner only
            "too noisy to tell: ddp 652 ms (587 ms to 717 ms) and fsdp 700 ms (630 ms to 770 ms); "
            "ddp is the simpler: 1.84x",
        ),
        (
            [near(DDP, "fsdp"), near(line("fsdp", 0.7, 1.71, 1.0), "ddp")],
            "too noisy to tell: ddp 652 ms (587 ms to 717 ms) and fsdp 700 ms (630 ms to 770 ms); "
            "fsdp needs 50 % less memory per device: 1.71x",
        ),
        (
            [near(DDP, "fsdp"), near(line("fsdp", 0.656, 1.83, 2.0), "ddp")],
            "no difference to tell: ddp 652 ms (587 ms to 717 ms) and fsdp 656 ms (590 ms to "
            "722 ms); ddp is the simpler: 1.84x",
        ),
        (
            [near(line("pipeline", 0.5, turns=1), "single"), near(line("single", 0.6), "pipeline")],
            "too noisy to tell: pipeline 500 ms and single 600 ms (540 ms to 660 ms); "
            "single is the simpler; from one round only",
        ),
    ],
)
def test_rows_that_cannot_be_told_apart_are_too_noisy_to_tell(rows, sentence):
    assert advise([*rows, line("model_parallel", 1.2, 1.0, 0.2)]) == sentence


def test_rows_alike_behind_the_fastest_do_not_matter():
    rows = [near(SLOW, "model_parallel"), DDP, near(line("model_parallel", 1.21, 0.99), "single")]
    assert advise(rows).startswith("ddp: 1.84x")


def test_a_whole_table_gives_one_sentence(seven):
    assert advise(lines(seven)) == (
        "no difference to tell: ddp 666 ms (658 ms to 674 ms) and fsdp 666 ms (658 ms to 674 ms); "
        "ddp is the simpler: 1.85x"
    )


def test_single_speaks_for_more_cores_that_give_little():
    threads = replace(
        line("single, all cores", 0.0011, 1.09, 1.0), strategy="single", is_reference=False
    )
    both = [near(SINGLE, threads.name), near(threads, "single")]
    slower = line("ddp", 0.0042, 0.29, 1.0, communication=0.7)
    assert advise([*both, slower]) == (
        "single: a step takes 1.20 ms, with ddp 4.20 ms, 2.94 ms of it communication; "
        "no other row needs 10 % less memory per device"
    )
    much = replace(threads, step_s=0.0006, speed_up=2.0)
    assert advise([both[0], near(much, "single"), slower]).startswith("single, all cores: 2.00x on")
