from dataclasses import dataclass, field
from time import monotonic, sleep

import pytest

from launch.comparison.job import JobError
from launch.comparison.rounds import LEAST, MORE, WARM, Pace, Rounds
from launch.comparison.turns import Found, Row


@dataclass
class Asleep:
    """A row whose steps take ``step_s``; turn number ``fails`` raises, the warm-up is 0."""

    log: list
    name: str
    step_s: float = 0.001
    fails: int | None = None
    traits: list = field(default_factory=lambda: ["dropout"])
    pids: list = field(default_factory=list)
    done: int = 0
    turns: int = 0

    def meet(self, timeout_s):
        self.log.append(f"{self.name} up")

    def turn(self, steps, timeout_s):
        if self.turns == self.fails:
            raise JobError("it broke")
        sleep(steps * self.step_s)
        first, self.done, self.turns = self.done + 1, self.done + steps, self.turns + 1
        self.log.append(f"{self.name} {steps}")
        turn = {"first": first, "last": self.done, "step_s": self.step_s, "loss": 1.0, "time_s": {}}
        return {"turn": turn, "peak_bytes": [7]}

    def end(self):
        self.log.append(f"{self.name} down")


def found(*names):
    return [Found(Row(n, (), 1, 1, 8, is_reference=n == "a")) for n in names]


def run(rows, pace, **kinds):
    log, kept = [], []
    own = {name: Asleep(log, name, **keys) for name, keys in kinds.items()}
    Rounds(rows, lambda f: own[f.row.name], pace, log.append, lambda: kept.append(len(log))).run()
    return log, kept


def test_rows_take_turns_of_the_same_steps_in_the_same_order():
    rows = found("a", "b", "c")
    log, kept = run(rows, Pace(0.02, 9, stays=True, steps=50), a={}, b={}, c={})
    turns = [line for line in log if line.split()[-1] == "50"]
    assert turns[:6] == ["a 50", "b 50", "c 50", "a 50", "b 50", "c 50"]
    assert {t.round for t in rows[0].timed} == set(range(1, len(rows[0].timed) + 1))
    assert [(t.first, t.last) for t in rows[1].turns[:3]] == [(1, 3), (4, 33), (34, 83)]
    assert len(kept) == 1 + len(rows[0].timed)
    assert log[-3:] == ["a down", "b down", "c down"]
    assert rows[0].peak_bytes == [7]
    assert rows[0].traits == ["dropout"]


def test_as_many_rounds_as_the_time_allows_and_no_more():
    start = monotonic()
    rows = found("a", "b")
    run(rows, Pace(0.02, 9, stays=True), a={"step_s": 0.005}, b={"step_s": 0.01})
    assert 0.8 < monotonic() - start < 1.5
    assert len(rows[0].timed) == len(rows[1].timed) >= 4


def test_a_row_that_breaks_takes_no_other_along():
    rows = found("a", "b", "c")
    log, _ = run(rows, Pace(0.01, 9, stays=True, steps=5), a={}, b={"fails": 3}, c={"fails": 0})
    assert [row.problem for row in rows] == ["", "it broke", "it broke"]
    assert len(rows[0].timed) == 1 + len(rows[1].timed) == 2  # alone there is nothing to compare
    assert rows[2].turns == []
    assert log.count("b down") == log.count("c down") == 1


def test_rows_too_slow_for_the_time_are_left_out_and_named_the_slowest_first():
    rows = found("a", "b", "c")
    slow = {"a": {"step_s": 0.02}, "b": {"step_s": 0.04}, "c": {"step_s": 0.3}}
    log, _ = run(rows, Pace(0.025, 9, stays=True), **slow)
    assert rows[2].problem == (
        f"a step takes 0.3 s: {LEAST} rounds of 1 step do not fit into --minutes 0.025"
    )
    assert rows[2].timed == []
    assert len(rows[0].timed) == len(rows[1].timed) >= LEAST
    assert log.index("c down") < log.index("a 1" if "a 1" in log else log[-1])


def test_the_row_that_all_are_compared_with_is_never_left_out():
    rows = found("a", "b")
    run(rows, Pace(0.01, 9, stays=True), a={"step_s": 0.15}, b={"step_s": 0.05})
    assert rows[1].problem
    assert rows[0].timed


def test_rows_that_cannot_begin_in_time_are_named():
    rows = found("a", "b", "c")
    slow = {"step_s": 0.1}
    run(rows, Pace(0.01, 9, stays=True), a=slow, b=slow, c={})
    assert rows[2].problem == "not started: --minutes 0.01 did not do for all"


def test_where_rows_cannot_stay_up_each_turn_is_a_job_that_warms_up():
    rows = found("a", "b")
    log, _ = run(rows, Pace(0.005, 9, stays=False, steps=4), a={}, b={})
    assert log[1:5] == ["a up", f"a {WARM}", "a down", "b: starts"]
    at = log.index("a 4")
    assert log[at - 2 : at + 2] == ["a up", f"a {WARM}", "a 4", "a down"]


def test_an_earlier_comparison_goes_on_with_the_next_round():
    rows = found("a", "b")
    pace = Pace(0.005, 9, stays=True, steps=4)
    run(rows, pace, a={}, b={})
    before = max(t.round for t in rows[0].timed)
    run(rows, pace, a={}, b={})
    assert (
        min(t.round for t in rows[0].timed if t.first == WARM + MORE + 1 and t.round > before)
        == before + 1
    )


def test_whatever_ends_it_no_row_stays_up():
    rows, log = found("a", "b"), []
    own = {name: Asleep(log, name) for name in "ab"}

    def interrupt():
        raise KeyboardInterrupt

    rounds = Rounds(rows, lambda f: own[f.row.name], Pace(1, 9, stays=True), log.append, interrupt)
    with pytest.raises(KeyboardInterrupt):
        rounds.run()
    assert log[-2:] == ["a down", "b down"]


def test_a_row_that_cannot_be_run_is_left_alone():
    rows = found("a", "b", "c")
    rows[1].problem = "the model cannot be cut"
    log, _ = run(rows, Pace(0.003, 9, stays=True, steps=4), a={}, b={}, c={})
    assert [line for line in log if line.startswith("b ") and line.split()[1] in ("up", "4")] == []
    assert rows[1].problem == "the model cannot be cut"
    assert rows[2].timed
