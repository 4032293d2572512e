import io

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from launch.comparison import board
from launch.comparison.picture import Drawing
from launch.comparison.table import lines


def load(folder):
    return EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()


@pytest.fixture
def rows(seven):
    return lines(seven)


def test_each_measured_row_has_a_point_of_each_quantity(tmp_path, rows):
    board.write(tmp_path, rows, "| a |", Drawing(rows, "", ""))
    found = load(tmp_path)
    measured = [row for row in rows if row.is_measured]
    assert sorted(found.Tags()["scalars"]) == sorted(
        f"compare/{name}/{row.name}"
        for name in ("step_time_s", "speed_up", "peak_gib")
        for row in measured
    )
    for row in measured:
        (point,) = found.Scalars(f"compare/step_time_s/{row.name}")
        assert (point.step, point.value) == (0, pytest.approx(row.step_s))
    assert found.Scalars("compare/peak_gib/pipeline m=8")[0].value == pytest.approx(0.92)
    assert found.Scalars("compare/speed_up/ddp")[0].value == pytest.approx(1.846, abs=1e-3)


def test_the_table_is_there_as_text(tmp_path, rows):
    board.write(tmp_path, rows, "| row |\n|---|\n| ddp |", Drawing(rows, "", ""))
    (text,) = load(tmp_path).Tensors("compare/table/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "| row |\n|---|\n| ddp |"


def test_the_picture_is_there_as_it_was_drawn(tmp_path, rows):
    drawing = Drawing(rows, "above", "below")
    board.write(tmp_path, rows, "", drawing)
    (shown,) = load(tmp_path).Images("compare/picture")
    with (
        Image.open(io.BytesIO(shown.encoded_image_string)) as image,
        Image.open(io.BytesIO(drawing.png())) as drawn,
    ):
        assert image.tobytes() == drawn.convert("RGB").tobytes()


def test_rows_of_another_batch_have_tags_of_their_own(row):
    found = [row("ddp", [1.0]), row("ddp", [1.5], batch=200, is_scaled=True)]
    assert board.points(lines(found)) == {
        "compare/step_time_s/ddp": 1.0,
        "compare/step_time_s/ddp, batch 200": 1.5,
    }


def test_a_later_comparison_replaces_the_earlier_ones_points(tmp_path, row):
    for step_s in (1.0, 2.0):
        rows = lines([row("single", [step_s])])
        board.write(tmp_path, rows, "", Drawing(rows, "", ""))
    assert len(list(tmp_path.iterdir())) == 1
    assert [p.value for p in load(tmp_path).Scalars("compare/step_time_s/single")] == [2.0]


class Interrupted(Drawing):
    """Ctrl-C comes while the picture is written."""

    def pixels(self):
        raise KeyboardInterrupt


def test_what_is_interrupted_leaves_the_earlier_file_and_no_half_one(tmp_path, rows):
    board.write(tmp_path, rows, "", Drawing(rows, "", ""))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        board.write(tmp_path, rows, "", Interrupted(rows, "", ""))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
