import csv
import json
import math
import os
from dataclasses import replace

import pytest
from PIL import Image

from launch.comparison.output import finish, read, write
from launch.comparison.table import lines
from launch.folder.disk import FolderError

TEXTS = {"compare.md", "compare.csv", "compare.json"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "compare-autoencoder"


def names(folder):
    return {path.name.partition(".tfevents")[0] for path in folder.iterdir()}


def test_after_a_round_there_are_the_texts(folder, seven, header):
    write(folder, seven, lines(seven), header, "ddp: 1.85x")
    assert names(folder) == TEXTS


def test_the_page_says_what_was_run_and_what_came_of_it(folder, seven, header):
    write(folder, seven, lines(seven), header, "ddp: 1.85x")
    page = (folder / "compare.md").read_text()
    assert page.startswith(f"```\n{header.command}\n```\n\nautoencoder: 2 cores, 2 devices,")
    assert "\n| ddp ~ | 2 |" in page
    assert page.endswith("\n\nddp: 1.85x\n\n2026-01-31T12:00:00+00:00, with torch 2.13.0\n")


def test_the_csv_is_the_table(folder, seven, header):
    write(folder, seven, lines(seven), header, "")
    with (folder / "compare.csv").open(newline="") as file:
        assert [each["name"] for each in csv.DictReader(file)] == [e.row.name for e in seven]


def test_what_was_written_can_be_read_and_gone_on_with(folder, seven, header):
    write(folder, seven, lines(seven), header, "ddp: 1.85x")
    assert read(folder) == (header, seven)
    assert json.loads((folder / "compare.json").read_text())["advice"] == "ddp: 1.85x"


def test_a_loss_that_is_no_number_is_strict_json(folder, row, header):
    lost = [row("single", [1.0], losses=[math.nan])]
    write(folder, lost, lines(lost), header, "")
    text = (folder / "compare.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)
    assert math.isnan(read(folder)[1][0].turns[0].loss)


def test_an_empty_folder_has_nothing_to_go_on_with(folder):
    assert read(folder) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rows": []}', '{"header": {}, "rows": []}'])
def test_a_json_that_is_no_comparison_is_refused_by_name(folder, text):
    folder.mkdir(parents=True)
    (folder / "compare.json").write_text(text)
    with pytest.raises(FolderError, match=r"compare.json is not what a comparison wrote.*name="):
        read(folder)


def test_at_the_end_there_are_picture_and_event_file_too(folder, seven, header):
    write(folder, seven, lines(seven), header, "ddp: 1.85x")
    finish(folder, seven, lines(seven), header, "ddp: 1.85x")
    assert names(folder) == TEXTS | {"compare.png", "events.out"}
    with Image.open(folder / "compare.png") as image:
        image.load()
        assert image.format == "PNG"
    assert (folder / "compare.md").read_text().endswith("](compare.png)\n")


def test_each_file_is_replaced_never_rewritten(folder, seven, header):
    write(folder, seven, lines(seven), header, "first")
    held = [os.open(folder / name, os.O_RDONLY) for name in sorted(TEXTS)]
    before = [(folder / name).read_bytes() for name in sorted(TEXTS)]
    write(folder, seven[:1], lines(seven[:1]), replace(header, batch=7), "second")
    assert [os.read(file, 1 << 20) for file in held] == before  # a reader keeps the whole old file
    for file in held:
        os.close(file)
    assert read(folder)[0].batch == 7


def test_a_place_that_cannot_be_written_is_named_with_what_to_do(tmp_path, row, header):
    (tmp_path / "runs").write_text("a file")
    found = [row("single", [1.0])]
    with pytest.raises(FolderError, match="runs=FOLDER"):
        write(tmp_path / "runs" / "compare-net", found, lines(found), header, "")
