from itertools import product

import pytest

from parallel import UsageError
from parallel.pipeline.schedule import KINDS, Op, draw, in_flight, order, simulate, timeline

DRAWN = {
    ("gpipe", 2, 3): """
        stage 0  F0 F1 F2 .. .. .. B0 B0 B1 B1 B2 B2
        stage 1  .. F0 F1 F2 B0 B0 B1 B1 B2 B2 .. ..
    """,
    ("1f1b", 2, 3): """
        stage 0  F0 F1 .. .. B0 B0 F2 B1 B1 .. B2 B2
        stage 1  .. F0 B0 B0 F1 B1 B1 F2 B2 B2 .. ..
    """,
    ("1f1b", 3, 4): """
        stage 0  F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
        stage 1  .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 .. ..
        stage 2  .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. .. .. ..
    """,
    ("1f1b", 3, 1): """
        stage 0  F0 .. .. .. .. .. .. B0 B0
        stage 1  .. F0 .. .. .. B0 B0 .. ..
        stage 2  .. .. F0 B0 B0 .. .. .. ..
    """,
    ("1f1b", 1, 2): "stage 0  F0 B0 B0 F1 B1 B1",
    ("1f1b", 2, 4, 1): """
        stage 0  F0 F1 F2 .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
        stage 1  .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. ..
    """,
}
SIZES = list(product(KINDS, (1, 2, 3, 4), (1, 2, 3, 8), (0, 1, 2)))


def lines(text):
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("case", DRAWN)
def test_the_schedule_is_as_drawn(case):
    assert lines(draw(*case)) == lines(DRAWN[case])


@pytest.mark.parametrize("case", DRAWN)
def test_the_order_is_the_drawn_one(case):
    kind, stages, microbatches, *ahead = case
    for stage, line in enumerate(lines(DRAWN[case])):
        cells = [cell for cell in line.split()[2:] if cell != ".."]
        drawn = list(dict.fromkeys(Op(cell[0], int(cell[1:])) for cell in cells))
        assert order(kind, stages, stage, microbatches, *ahead) == drawn


def test_a_picture_of_many_microbatches_stays_in_columns():
    first, last = draw("1f1b", 2, 11).splitlines()
    assert len(first) == len(last)
    assert first.endswith("B9  B9  ... B10 B10")


@pytest.mark.parametrize(("kind", "stages", "microbatches", "ahead"), SIZES)
def test_E2_every_stage_computes_every_microbatch_once_in_the_same_order(
    kind, stages, microbatches, ahead
):
    for stage in range(stages):
        ops = order(kind, stages, stage, microbatches, ahead)
        assert [each for name, each in ops if name == "F"] == list(range(microbatches))
        assert [each for name, each in ops if name == "B"] == list(range(microbatches))
        assert all(ops.index(Op("F", n)) < ops.index(Op("B", n)) for n in range(microbatches))


@pytest.mark.parametrize(("kind", "stages", "microbatches", "ahead"), SIZES)
def test_a_stage_holds_as_many_microbatches_as_it_is_said_to(kind, stages, microbatches, ahead):
    for stage in range(stages):
        held, most = 0, 0
        for op in order(kind, stages, stage, microbatches, ahead):
            held += 1 if op.kind == "F" else -1
            most = max(most, held)
        assert most == in_flight(kind, stages, stage, microbatches, ahead)


def test_1f1b_holds_no_more_microbatches_than_stages_from_here_on():
    assert [in_flight("1f1b", 4, stage, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [in_flight("1f1b", 4, stage, 2) for stage in range(4)] == [2, 2, 2, 1]
    assert [in_flight("1f1b", 4, stage, 8, 1) for stage in range(4)] == [5, 4, 3, 1]
    assert [in_flight("gpipe", 4, stage, 8, 1) for stage in range(4)] == [8, 8, 8, 8]


@pytest.mark.parametrize(("kind", "stages", "microbatches", "ahead"), SIZES)
def test_equal_stages_take_the_time_of_the_closed_form(kind, stages, microbatches, ahead):
    found = simulate([(1.0, 2.0)] * stages, kind, microbatches, ahead=ahead)
    ticks = microbatches + stages - 1
    assert found.step_s == pytest.approx(ticks * 3.0)
    assert found.bubble == pytest.approx((stages - 1) / ticks)
    assert found.speed_up == pytest.approx(stages * microbatches / ticks)


@pytest.mark.parametrize(
    ("shares", "microbatches", "speed_up"),
    [
        ((0.13, 0.87), 4, 1.11),
        ((0.13, 0.87), 8, 1.13),
        ((0.514, 0.486), 4, 1.59),
        ((0.514, 0.486), 8, 1.75),
        ((0.004, 0.51, 0.476, 0.01), 8, 1.77),
        ((0.13, 0.384, 0.364, 0.122), 8, 2.26),
    ],
)
def test_the_autoencoders_stages_are_as_fast_as_measured_ones_were_expected(
    shares, microbatches, speed_up
):
    times = [(share / 3, share * 2 / 3) for share in shares]
    assert simulate(times, "1f1b", microbatches).speed_up == pytest.approx(speed_up, abs=0.005)


def test_one_microbatch_is_the_naive_split():
    found = simulate([(1.0, 2.0), (2.0, 4.0)], "gpipe", 1)
    assert (found.step_s, found.speed_up, found.bubble) == (9.0, 1.0, 0.5)


def test_a_message_delays_the_next_stage_alone():
    first, last = timeline([(1.0, 1.0), (1.0, 1.0)], "gpipe", 2, [0.5])
    assert [(op.kind, start) for op, start, _ in first] == [("F", 0), ("F", 1), ("B", 5), ("B", 6)]
    assert [start for _, start, _ in last] == [1.5, 2.5, 3.5, 4.5]


def test_messages_in_one_direction_wait_for_each_other():
    found = timeline([(1.0, 1.0), (1.0, 1.0)], "gpipe", 3, [4.0])
    assert [start for op, start, _ in found[1] if op.kind == "F"] == [5.0, 9.0, 13.0]


def test_with_one_microbatch_ahead_messages_travel_while_stages_compute():
    times, messages = [(1.0, 2.0)] * 4, [0.25] * 3
    waits = simulate(times, "1f1b", 8, messages)
    travels = simulate(times, "1f1b", 8, messages, ahead=1)
    assert travels.step_s == (8 + 3) * 3 + 6 * 0.25  # what fills and drains the pipeline
    assert waits.step_s > travels.step_s + 8 * 0.25


def test_E15_messages_can_make_two_stages_slower_than_one_device():
    assert simulate([(1.0, 2.0)] * 2, "1f1b", 4, [5.0]).speed_up < 1


def test_stages_without_work_take_no_time():
    found = simulate([(0.0, 0.0)] * 2, "1f1b", 4)
    assert (found.step_s, found.bubble, found.speed_up) == (0.0, 0.0, 1.0)


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"strategy.schedule=zb is not one of 1f1b, gpipe"):
        order("zb", 2, 0, 4)


@pytest.mark.parametrize("ask", [order, in_flight])
def test_no_microbatches_are_refused(ask):
    with pytest.raises(UsageError, match=r"strategy.microbatches=0: at least 1 is wanted"):
        ask("1f1b", 2, 0, 0)
