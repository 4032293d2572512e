import math
from dataclasses import replace

import pytest

from launch.comparison.table import cannot_tell, lines
from launch.comparison.turns import Foreseen, Turn

GIB = 2**30


def turns(*times):
    return [Turn(number, 1, 2, step_s, 1.0) for number, step_s in enumerate(times, 1) if step_s]


def by_name(found):
    return {line.name: line for line in lines(found)}


def test_a_line_has_median_and_quartiles_of_the_turns(row):
    line = lines([row("single", [5.0, 1.0, 2.0, 3.0, 4.0])])[0]
    assert (line.turns, line.low_s, line.step_s, line.high_s) == (5, 2.0, 3.0, 4.0)
    assert line.samples_per_s == pytest.approx(100 / 3)


def test_one_turn_has_no_spread(row):
    line = lines([row("single", [2.0])])[0]
    assert (line.low_s, line.step_s, line.high_s) == (2.0, 2.0, 2.0)


def test_the_times_of_the_warm_up_do_not_count(row):
    line = lines([row("single", [2.0, 2.0], warm=50.0)])[0]
    assert (line.turns, line.step_s, line.high_s) == (2, 2.0, 2.0)


def test_a_row_that_only_warmed_up_is_not_measured(row):
    found = [row("single", [1.0]), row("ddp", warm=9.0, problem="does not fit into --minutes 1")]
    line = by_name(found)["ddp"]
    assert (line.is_measured, line.loss, line.alike) == (False, None, ())
    assert line.note == "does not fit into --minutes 1"


def test_the_speed_up_is_the_median_of_ratios_within_rounds(row):
    # the machine slows down by 1, 2, 4: medians of all times would say 2/2
    single, ddp = row("single", [1.0, 2.0, 4.0]), row("ddp", [0.5, 1.0, 2.0])
    del ddp.turns[0]
    line = by_name([single, ddp])["ddp"]
    assert line.speed_up == 2.0
    assert line.efficiency == 1.0


def test_the_reference_is_once_as_fast_as_itself(row):
    line = lines([row("single", [1.0, 3.0])])[0]
    assert (line.speed_up, line.efficiency) == (1.0, 1.0)


def test_without_a_timed_reference_there_is_no_speed_up(row):
    found = [row("single", problem="out of memory"), row("ddp", [1.0, 1.0])]
    assert (by_name(found)["ddp"].speed_up, by_name(found)["ddp"].efficiency) == (None, None)


def test_scaled_rows_are_compared_in_samples(row):
    found = [row("single", [1.0, 1.0]), row("ddp", [1.25, 1.25], batch=200, is_scaled=True)]
    line = by_name(found)["ddp"]
    assert (line.speed_up, line.efficiency) == (1.6, 0.8)


def test_scaled_rows_and_others_are_never_called_alike(row):
    found = [row("single", [1.0, 1.0]), row("ddp", [1.0, 1.0], batch=200, is_scaled=True)]
    assert [line.alike for line in lines(found)] == [(), ()]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([], [1.0], False),  # nothing to tell
        ([1.0, None], [None, 1.0], False),  # no round in common
        ([1.0], [1.5], False),
        ([1.0], [1.005], True),
        ([1.0, 1.0, 1.0], [1.1, 1.1, 1.1], False),
        ([1.0, 1.0, 1.0], [1.1, 1.1, 0.9], True),  # fewer than six: always, or not at all
        ([1.0] * 6, [1.1] * 6, False),  # 2/64 by chance
        ([1.0] * 6, [1.1] * 5 + [0.9], True),  # 14/64
        ([1.0] * 8, [1.1] * 7 + [0.9], True),  # 18/256 = 7 %
        ([1.0] * 9, [1.1] * 8 + [0.9], False),  # 20/512 = 4 %
        ([1.0] * 20, [1.005] * 20, True),  # sure, but too little to matter
        ([1.0] * 7, [1.0] + [1.25] * 6, False),  # ties speak for neither
        ([1.0] * 2, [1.02, 1.3], True),  # rounds differ by more than rows
        ([1.0] * 4, [1.0] * 4, True),
        ([1.0] * 2, [0.9, 1.12], True),
    ],
)
def test_rows_cannot_be_told_apart_by_chance_or_a_hair(one, other, expected):
    assert cannot_tell(turns(*one), turns(*other)) is expected
    assert cannot_tell(turns(*other), turns(*one)) is expected


def test_the_mark_names_every_row_that_it_is_about(seven):
    alike = {line.name: line.alike for line in lines(seven)}
    assert alike.pop("ddp") == ("fsdp",)
    assert alike.pop("fsdp") == ("ddp",)
    assert alike.pop("single") == ("model_parallel",)  # 0.8 % apart
    assert alike.pop("model_parallel") == ("single",)
    assert set(alike.values()) == {()}


def test_shares_are_medians_and_waiting_that_was_foreseen_is_the_bubble(row):
    found = row(
        "pipeline", [1.0, 2.0], phases={"data": 0.01, "transfer": 0.02, "communication": 0.3}
    )
    found.foreseen = Foreseen(bubble=0.2)
    line = lines([found])[0]
    assert line.data == pytest.approx(0.03)
    assert line.bubble == pytest.approx(0.2)
    assert line.communication == pytest.approx(0.1)


def test_there_is_no_more_bubble_than_waiting(row):
    found = row("pipeline", [1.0], phases={"communication": 0.1}, foreseen=Foreseen(bubble=0.2))
    assert (lines([found])[0].bubble, lines([found])[0].communication) == (pytest.approx(0.1), 0.0)


def test_a_row_without_timed_phases_has_no_shares(row):
    line = lines([row("script", [1.0])])[0]
    assert (line.data, line.communication, line.bubble) == (None, None, None)


def test_memory_is_that_of_the_process_or_device_with_most(row):
    found = row("pipeline", [1.0], peak_bytes=[GIB, 3 * GIB])
    found.foreseen = Foreseen(0.5, (2 * GIB, GIB))
    line = lines([found])[0]
    assert (line.peak_gib, line.foreseen_gib, line.foreseen_step_s) == (3.0, 2.0, 0.5)


def test_the_loss_is_that_of_the_last_turn_that_all_rows_took(row):
    found = [row("single", [1.0] * 4), row("ddp", [1.0] * 2), row("fsdp", problem="no word")]
    assert [line.loss for line in lines(found)] == [0.5, 0.5, None]


def test_a_row_that_only_warmed_up_does_not_hold_back_the_common_steps(row):
    found = [row("single", [1.0] * 2, warm=1.0), row("ddp", warm=9.0)]
    assert lines(found)[0].loss == 0.5


def test_scaled_rows_do_not_hold_back_the_common_steps(row):
    found = [row("single", [1.0] * 4), row("ddp", [1.0], batch=200, is_scaled=True)]
    assert lines(found)[0].loss == 0.25


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        ([1.0, 0.5], ""),
        ([1.0005, 0.5], ""),  # rounding
        ([1.1, 0.5], "loss 10 % from single's in steps 1 to 10, and nothing in the model explains"),
        ([1.0, 0.55], "in steps 11 to 20, where rounding has grown; alike before"),
        ([1.0, math.nan], "loss is nan where single's is 0.5 in steps 11 to 20"),
    ],
)
def test_losses_must_agree_else_the_row_says_so_and_why(row, losses, note):
    found = [row("single", [1.0] * 2, losses=[1.0, 0.5]), row("ddp", [1.0] * 2, losses=losses)]
    assert note in by_name(found)["ddp"].note
    assert bool(by_name(found)["ddp"].note) == bool(note)


def test_losses_that_overflow_in_both_rows_agree(row):
    lost = [math.nan, math.nan]
    found = [row("single", [1.0] * 2, losses=lost), row("ddp", [1.0] * 2, losses=lost)]
    assert by_name(found)["ddp"].note == ""


def test_what_the_whole_model_has_explains_the_loss_of_a_stage(row):
    found = [
        row("single", [1.0], losses=[1.0], traits=["batch normalisation", "dropout"]),
        row("pipeline", [1.0], losses=[1.1], traits=["dropout"]),
    ]
    assert by_name(found)["pipeline"].note == (
        "loss 10 % from single's in steps 1 to 10: with batch normalisation and dropout it "
        "depends on how a batch is divided"
    )


def test_a_row_that_ended_early_says_both_what_differs_and_why_it_ended(row):
    found = [
        row("single", [1.0], losses=[1.0]),
        row("ddp", [1.0], losses=[1.1], problem="killed by SIGKILL"),
    ]
    note = by_name(found)["ddp"].note
    assert note.startswith("loss 10 %")
    assert note.endswith("; killed by SIGKILL")


def test_lines_keep_the_order_in_which_rows_were_asked_for(seven):
    assert [line.name for line in lines(seven)] == [each.row.name for each in seven]


def test_a_line_names_its_strategy(seven):
    named = replace(seven[4].row, words=("strategy.name=pipeline", "strategy.microbatches=4"))
    assert lines([replace(seven[4], row=named)])[0].strategy == "pipeline"
