import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from launch.config import ConfigError, build_task
from launch.tasks.images import Images
from launch.tasks.pictures import find_pictures, held_out, read_pixels
from parallel import UsageError


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of one colour each, in three folders, and what is no picture."""
    for number in range(12):
        kind = ("cat", "dog", "bird")[number % 3]
        save(tmp_path / kind / "inside" / f"{number:02}.png", number * 20)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    save(tmp_path / ".hidden" / "copy.png", 0)
    return tmp_path


def save(path, grey, size=(20, 16), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).convert(mode).save(path, **options)


def test_pictures_are_found_in_order_by_extension_without_links_and_hidden_ones(folder):
    save(folder / "upper.JPG", 0)
    (folder / "link.png").symlink_to(folder / "upper.JPG")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    expected = [f"{kind}/inside/{n:02}.png" for n in range(12) for kind in [_kind(n)]]
    assert find_pictures(folder) == sorted([*expected, "upper.JPG"])


def test_reconstruction_has_pictures_alone_and_says_psnr(folder):
    task = Images(str(folder), size=16)
    task.prepare()
    splits = task.datasets()
    assert sum(map(len, splits.values())) == 12
    batch = task.collate([splits["train"][0], splits["train"][1]])
    model = task.model()
    assert model(task.inputs(batch)).shape == (2, 3, 16, 16)
    said = task.loss(model, batch)
    assert (said["loss"].shape, said["psnr"].shape) == ((), (2,))
    expected = -10 * said["loss"].log10()
    assert said["psnr"].min() - 1e-3 <= expected <= said["psnr"].max() + 1e-3


def test_a_class_is_a_first_level_folder_and_its_number_its_place_in_order(folder):
    save(folder / "loose.png", 0)  # belongs to no class
    task = Images(str(folder), target="class", size=16)
    assert task.classes == ["bird", "cat", "dog"]
    splits = task.datasets()
    assert sum(map(len, splits.values())) == 12
    for pictures in splits.values():
        for n, name in enumerate(pictures.names):
            pixels, label = pictures[n]
            number = int(name[-6:-4])
            assert task.classes[label] == name.split("/")[0] == _kind(number)
            assert pixels.mul(255).round().unique().tolist() == [number * 20]
    batch = task.collate([splits["train"][0], splits["train"][1]])
    said = task.loss(task.model(), batch)
    assert (task.model()(batch[0]).shape, said["accuracy"].shape) == ((2, 3), (2,))


def test_unreadable_pictures_are_listed_once_and_left_out(folder, caplog):
    for n in range(11):
        (folder / "cat" / f"broken{n:02}.png").write_bytes(b"not at all")
    task = Images(str(folder))
    task.prepare()
    [(_, level, words)] = caplog.record_tuples
    assert level == logging.WARNING
    assert words.endswith("; they are left out, 12 remain")
    assert words.startswith("11 pictures cannot be read: cat/broken00.png (of no kind that")
    assert "broken09" in words
    assert "broken10" not in words
    assert "and 1 more" in words
    assert sum(map(len, task.datasets().values())) == 12


def test_a_png_cut_off_is_found_before_training(folder, caplog):
    path = folder / "cat" / "cut.png"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    Images(str(folder)).prepare()
    assert "1 picture cannot be read: cat/cut.png" in caplog.text


def test_unreadable_pictures_may_be_fatal(folder):
    (folder / "broken.gif").write_bytes(b"")
    task = Images(str(folder), unreadable="fail")
    with pytest.raises(
        ConfigError, match=r"1 picture .*broken\.gif .*or use task\.unreadable=list"
    ):
        task.prepare()


def test_a_picture_that_breaks_off_is_named_when_it_is_met(folder):
    path = folder / "cut.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UsageError, match=r"cut\.jpg begins like one .*replace or remove it"):
        read_pixels(path, 16)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("L", "a.png"),
        ("1", "a.png"),
        ("P", "a.gif"),
        ("LA", "a.png"),
        ("RGBA", "a.webp"),
        ("CMYK", "a.tif"),
        ("YCbCr", "a.jpg"),
        ("RGB", "a.bmp"),
        ("RGB", "a.ppm"),
    ],
)
def test_a_picture_of_any_mode_becomes_red_green_and_blue(tmp_path, mode, name):
    save(tmp_path / name, 255, mode=mode)
    pixels = read_pixels(tmp_path / name, 8)
    assert (pixels.shape, pixels.dtype) == ((3, 8, 8), torch.float32)
    assert pixels.min() > 0.98


def test_16_bit_greys_keep_their_brightness(tmp_path):
    Image.fromarray(np.full((8, 8), 128 << 8, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert read_pixels(tmp_path / "deep.png", 8).mul(255).unique().tolist() == [128]


def test_a_palette_with_transparency_raises_no_warning(tmp_path):
    picture = Image.new("L", (8, 8), 255).convert("P")
    picture.save(tmp_path / "clear.png", transparency=bytes([0] * 256))
    assert read_pixels(tmp_path / "clear.png", 8).min() > 0.98


def test_the_middle_is_kept(tmp_path):
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert read_pixels(tmp_path / "wide.png", 8)[:, :, 1:-1].min() > 0.9


def test_a_photograph_taken_upright_stands_upright(tmp_path):
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[:, :8] = 255  # left, as the sensor has it
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif)
    upright = read_pixels(tmp_path / "turned.jpg", 16)
    assert upright[:, :4].min() > 0.9
    assert upright[:, -4:].max() < 0.1


def test_a_side_depends_on_the_path_alone():
    names = [f"{n}.png" for n in range(1000)]
    held = held_out(names, 0.1)
    assert 70 < len(held) < 130
    assert held_out(names[:500], 0.1) == held & set(names[:500])


@pytest.mark.parametrize("share", [1e-9, 0.1, 0.999999])
@pytest.mark.parametrize("files", [2, 3, 5])
def test_neither_side_is_empty(files, share):
    assert 0 < len(held_out([f"{n}.png" for n in range(files)], share)) < files


def test_one_picture_or_no_share_leaves_nothing_to_judge_by(tmp_path, folder):
    assert held_out(["a.png"], 0.5) == set()
    assert list(Images(str(folder), valid_share=0).datasets()) == ["train"]


def test_training_pictures_may_be_mirrored_by_the_seed(tmp_path):
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:, 4:] = 255
    for n in range(8):
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
    splits = Images(str(tmp_path), size=8, augment=True).datasets()

    def left_sides(split):
        torch.manual_seed(0)
        return [splits[split][0][0][:, :, 0].max().item() for _ in range(20)]

    assert set(left_sides("train")) == {0.0, 1.0}
    assert left_sides("train") == left_sides("train")
    assert set(left_sides("valid")) == {0.0}


def test_task_and_splits_can_be_sent_to_a_process(folder):
    task = Images(str(folder), target="class")
    splits = pickle.loads(pickle.dumps(task)).datasets()
    assert pickle.loads(pickle.dumps(splits["train"]))[0][0].shape == (3, 64, 64)


def test_no_folder_given_is_asked_for():
    with pytest.raises(ConfigError, match=r"Images needs task\.folder; type task\.folder=VALUE"):
        build_task({"_target_": "launch.tasks.images.Images"})


@pytest.mark.parametrize(
    ("name", "words"),
    [("absent", "does not exist .*looked in .*give a folder"), ("notes.txt", "is a file")],
)
def test_a_folder_that_is_none_is_named(folder, name, words):
    with pytest.raises(ConfigError, match=rf"task\.folder=.*{name} {words}"):
        Images(str(folder / name))


def test_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no picture that can be read; give a folder with"):
        Images(str(tmp_path)).prepare()


@pytest.mark.parametrize(("inside", "met"), [("", "has none with"), ("cat/", "has only cat with")])
def test_fewer_than_two_classes_are_refused(tmp_path, inside, met):
    save(tmp_path / f"{inside}a.png", 0)
    with pytest.raises(
        ConfigError, match=f"two at least, .*{met} .*use task.target=reconstruction"
    ):
        Images(str(tmp_path), target="class").datasets()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 60}, "task.size=60: wanted a multiple of 8; use task.size=64"),
        ({"size": 0}, "use task.size=8"),
        ({"target": "clas"}, "task.target=clas: wanted reconstruction or class"),
        ({"unreadable": "skip"}, "task.unreadable=skip: wanted list or fail"),
        ({"valid_share": -0.1}, "task.valid_share=-0.1: wanted a part"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        Images(str(tmp_path), **settings)


def test_the_built_in_run_does_not_need_pillow():
    code = "import sys, launch.tasks.digits; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _kind(number):
    return ("cat", "dog", "bird")[number % 3]
