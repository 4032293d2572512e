import json
import math

import pytest

from launch.comparison.turns import Foreseen, Found, Row, Turn, from_json, to_json

FULL = Found(
    Row("2x2 pipeline", ("strategy.name=pipeline", "strategy.stages=2"), 4, 4, 100, True),
    [Turn(0, 1, 3, 0.5, 2.5), Turn(1, 4, 9, 0.25, 1.5, {"data": 0.01, "forward": 0.1}, 0.75)],
    [1000, 2000],
    ["dropout"],
    Foreseen(0.2, (900, 1900), 0.1),
    "ended by its time limit",
)


def test_rows_come_back_from_json_as_they_were():
    bare = Found(Row("single", (), 1, 1, 100, is_reference=True))
    text = json.dumps(to_json([FULL, bare]), allow_nan=False)
    assert from_json(json.loads(text)) == [FULL, bare]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_comes_back_from_strict_json_as_nan(loss):
    text = json.dumps(to_json([Found(FULL.row, [Turn(1, 1, 2, 0.5, loss)])]), allow_nan=False)
    assert math.isnan(from_json(json.loads(text))[0].turns[0].loss)


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        [[]],
        [{}],
        [{**to_json([FULL])[0], "row": {"name": "ddp"}}],
        [{**to_json([FULL])[0], "turns": [{"round": 1, "loss": 1.0, "speed": 3}]}],
        [{**to_json([FULL])[0], "turns": [{"round": 1}]}],
        [{**to_json([FULL])[0], "peak_bytes": None}],
    ],
)
def test_what_to_json_did_not_give_is_refused(wrong):
    with pytest.raises((KeyError, TypeError)):
        from_json(wrong)


def test_the_warm_up_is_not_among_the_timed_turns():
    assert [turn.round for turn in FULL.timed] == [1]


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ((), ""),
        (("train.compile=true",), ""),
        (("strategy.name=ddp",), "ddp"),
        (("strategy.name=auto", "strategy.name=fsdp"), "fsdp"),
    ],
)
def test_the_strategy_is_the_one_that_the_last_word_names(words, strategy):
    assert Row("any", words, 1, 1, 8).strategy == strategy
