import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from launch.comparison.picture import COLOURS, Drawing
from launch.comparison.table import lines


def colours(drawing):
    """Return how many pixels of each colour there are."""
    red, green, blue = (drawing.pixels() * 255).round().int()
    found, counts = torch.unique(red << 16 | green << 8 | blue, return_counts=True)
    return {f"{int(c):06x}": int(n) for c, n in zip(found, counts, strict=True)}


def area(drawing, strategy):
    return colours(drawing).get(COLOURS[strategy][1:].lower(), 0)


def test_the_picture_is_a_png_of_the_same_pixels(seven):
    drawing = Drawing(lines(seven), "above", "below")
    with Image.open(io.BytesIO(drawing.png())) as image:
        assert image.format == "PNG"
        shown = torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1) / 255
    assert torch.equal(drawing.pixels(), shown)
    assert min(shown.shape[1:]) > 400


def test_each_strategy_has_bars_of_its_colour_as_long_as_its_figures(seven):
    drawing = Drawing(lines(seven), "", "")
    assert {name for name in COLOURS if area(drawing, name)} == {
        "single", "ddp", "fsdp", "model_parallel", "pipeline"
    }  # fmt: skip
    slow, fast = lines(seven)[0], replace(lines(seven)[1], speed_up=None, peak_gib=None)
    times = Drawing([replace(slow, speed_up=None, peak_gib=None), fast], "", "")
    ratio = area(times, "ddp") / area(times, "single")
    assert ratio == pytest.approx(0.54, abs=0.05)  # 0.666 s to 1.23 s


def test_the_spread_is_drawn(row):
    single = lines([row("single", [1.0, 1.5, 2.0])])[0]
    without = replace(single, low_s=single.step_s, high_s=single.step_s)
    dark = {each: colours(Drawing([each], "", ""))["333333"] for each in (single, without)}
    assert dark[single] > dark[without] + 20


def test_what_was_predicted_is_drawn_beside_the_bar(row):
    plain = lines([row("single", [1.0])])[0]
    foreseen = Drawing([replace(plain, foreseen_step_s=2.0)], "", "").pixels()
    assert not torch.equal(foreseen, Drawing([plain], "", "").pixels())


def test_a_failed_row_is_written_out(seven):
    rows = lines(seven)
    other = [*rows[:6], replace(rows[6], note="killed by SIGKILL")]
    assert not torch.equal(Drawing(rows, "", "").pixels(), Drawing(other, "", "").pixels())


@pytest.mark.parametrize("many", [0, 1, 2])
def test_a_table_without_any_figures_can_be_drawn(row, many):
    rows = lines([row(name, problem="out of memory") for name in ("single", "ddp")[:many]])
    assert Drawing(rows, "above", "nothing was measured").png()[:4] == b"\x89PNG"


def test_text_that_looks_like_a_formula_is_shown_as_it_is(row):
    rows = lines([row("a $\\frac$ row", [1.0]), row("ddp", problem="KeyError: '$x_{$'")])
    assert Drawing(rows, "$\\oops$", "$^$").png()[:4] == b"\x89PNG"


def test_no_figure_of_another_program_is_touched(row):
    import matplotlib

    before = dict(matplotlib.rcParams)
    Drawing(lines([row("single", [1.0])]), "", "")
    assert dict(matplotlib.rcParams) == before
