import csv
import io
from dataclasses import replace

import pytest

from launch.comparison.header import head
from launch.comparison.report import alike, comma_separated, markdown, text
from launch.comparison.table import Line, lines

TABLE = """\
                                          step  predicted  samples            efficiency  data  communication  bubble    peak GiB  predicted
row               devices        s (quartiles)          s       /s  speed-up           %     %              %       %  per device        GiB  batch   loss
single ~                1     1.23 (1.22-1.24)       1.25     81.3      1.00         100                                     2.90       2.80    100  0.167
ddp ~                   2  0.666 (0.658-0.674)                 150      1.85          92   1.0            4.0                1.62               100  0.167
fsdp ~                  2  0.666 (0.658-0.674)                 150      1.85          92   1.0            4.0                1.58               100  0.167
model_parallel ~        2     1.22 (1.20-1.23)       1.20     82.0      1.01          50   1.0            1.0      49        1.50       1.40    100  0.167
pipeline m=4            2  0.820 (0.810-0.830)                 122      1.50          75   1.0            4.0               0.930               100  0.167
pipeline m=8            2  0.769 (0.759-0.778)                 130      1.60          80   1.0            4.0               0.920               100  0.167
2x2 pipeline            4  out of memory: rank 1 | stopped"""  # noqa: E501 - a terminal's width


def cells(table):
    """Return each line's words, wherever they stand."""
    return [line.split() for line in table.splitlines()]


def test_the_terminal_shows_this_table(seven):
    printed = text(lines(seven), ["above"], "below")
    above, table, notes, below = printed.split("\n\n")
    assert (above, below) == ("above", "below\n")
    assert table == TABLE
    assert notes == (
        "~ too close or too noisy to tell which is faster: single and model_parallel; ddp and fsdp"
    )


def test_a_failed_row_is_a_line_with_its_reason(seven):
    line = next(line for line in text(lines(seven), [], "").splitlines() if "2x2" in line)
    assert line.split(maxsplit=3) == ["2x2", "pipeline", "4", "out of memory: rank 1 | stopped"]


def test_a_row_that_has_not_been_run_says_so(row):
    assert "not run yet" in text(lines([row("ddp")]), [], "")


def test_only_columns_that_have_something_are_shown(row):
    table = text(lines([row("single", [0.5])]), [], "").split("\n\n")[1]
    assert cells(table)[1] == ["row", "devices", "ms", "(quartiles)", "/s", "speed-up", "%",
                               "batch", "loss"]  # fmt: skip
    assert cells(table)[2] == ["single", "1", "500", "200", "1.00", "100", "100", "1.00"]


@pytest.mark.parametrize(("slowest", "unit"), [(0.9, "ms"), (1.0, "s")])
def test_one_unit_of_time_serves_the_whole_column(row, slowest, unit):
    table = text(lines([row("single", [slowest]), row("ddp", [0.01])]), [], "")
    assert f" {unit} (quartiles)" in table


def test_what_a_measured_row_has_to_say_stands_below(row):
    found = [row("single", [1.0], losses=[1.0]), row("ddp", [0.5], losses=[1.1])]
    assert "\n\nddp: loss 10 % from single's in steps 1 to 10" in text(lines(found), [], "")


def test_scaled_rows_are_a_second_table(row):
    found = [row("single", [1.0]), row("ddp", [1.2], batch=200, is_scaled=True)]
    tables = text(lines(found), ["above"], "below").split("\n\n")
    assert "ddp" not in tables[1]
    title, *table = tables[2].splitlines()
    assert title == "Weak scaling: the batch grows with the devices"
    assert table[-1].split()[:6] == ["ddp", "2", "1.20", "167", "1.67", "83"]


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([], []),
        (["ab"], ["ab"]),
        (["ab", "bc"], ["ab", "bc"]),  # a may be told from c
        (["ab", "bc", "ac"], ["abc"]),
        (["ab", "ac", "bc", "cd", "bd"], ["abc", "bcd"]),
        (["ad", "bc"], ["ad", "bc"]),
    ],
)
def test_rows_are_grouped_where_none_can_be_told_from_another(pairs, groups):
    both = {frozenset(pair) for pair in pairs}
    rows = [
        Line(name, 1, 1, alike=tuple(o for o in "abcd" if frozenset((name, o)) in both))
        for name in "abcd"
    ]
    assert ["".join(group) for group in alike(rows)] == groups


def test_markdown_has_the_same_cells_and_the_reasons_in_a_last_column(seven):
    _, table, mark, below = markdown(lines(seven), ["above"], "below").split("\n\n")
    rows = table.splitlines()
    assert rows[0].startswith("| row | devices | step s (quartiles) | predicted s | samples/s |")
    assert rows[0].endswith("| peak GiB per device | predicted GiB | batch | loss | note |")
    assert {line.replace("\\|", "").count("|") for line in rows} == {16}
    assert rows[3].startswith("| ddp ~ | 2 | 0.666 (0.658-0.674) |  | 150 | 1.85 | 92 |")
    assert rows[5].startswith("| model\\_parallel ~ | 2 |")
    assert rows[8].endswith("| out of memory: rank 1 \\| stopped |")
    assert mark.endswith("ddp and fsdp")
    assert below == "below\n"


def test_csv_holds_every_field_of_every_row(seven):
    rows = list(csv.DictReader(io.StringIO(comma_separated(lines(seven)))))
    assert [each["name"] for each in rows] == [each.row.name for each in seven]
    ddp, failed = rows[1], rows[6]
    assert ddp["step_s"] == "0.66625"
    assert (ddp["strategy"], ddp["is_reference"], ddp["alike"]) == ("ddp", "false", "fsdp")
    assert (failed["step_s"], failed["note"]) == ("", "out of memory: rank 1 | stopped")


def test_the_head_says_what_was_measured_on_what_and_how(seven, header):
    assert head(header, seven) == [
        "autoencoder: 2 cores, 2 devices, global batch 100, 6 rounds of 10 steps, "
        "load before turns 0.0"
    ]


def test_a_busy_machine_is_seen(row, header):
    busy = [row("single", [1.0] * 3, load=2.3), row("ddp", [1.0] * 3, load=2.3)]
    assert head(header, busy)[1:] == [
        "the machine was busy: load 2.3 on 2 cores before turns; step times hold other work too"
    ]
    assert head(replace(header, cores=64), busy)[1:] == []


def test_turns_of_different_lengths_are_both_told(row, header):
    found = row("single", [1.0] * 2)
    found.turns[1] = replace(found.turns[1], last=found.turns[1].last + 5)
    assert "2 rounds of 10 to 15 steps" in head(header, [found])[0]


def test_before_the_first_round_the_head_says_so(row, header):
    assert head(header, [row("single", warm=1.0)]) == [
        "autoencoder: 2 cores, 2 devices, global batch 100, nothing timed yet"
    ]
