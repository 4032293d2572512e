import math
import pickle

import pytest
import torch
from torch import nn

from launch.config import ConfigError
from launch.tasks.text import Text, Windows

SMALL = {"width": 8, "layers": 2, "heads": 2, "context": 6}


def test_a_later_byte_does_not_change_earlier_logits():
    torch.manual_seed(0)
    model = Text(**SMALL).model().eval()
    text = torch.randint(256, (2, 6))
    changed = text.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 256
    before, after = model(text), model(changed)
    assert before[:, :4].equal(after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_every_earlier_byte_changes_the_last_logits():
    torch.manual_seed(0)
    model = Text(**SMALL).model().double().eval()
    text = torch.randint(256, (1, 6))
    for place in range(6):
        changed = text.clone()
        changed[0, place] = (changed[0, place] + 1) % 256
        assert not torch.equal(model(text)[0, 5], model(changed)[0, 5])


def test_the_model_is_layers_in_a_row_without_buffers():
    model = Text(**SMALL).model()
    assert isinstance(model, nn.Sequential)
    assert not list(model.buffers())
    assert model(torch.zeros(3, 4, dtype=torch.long)).shape == (3, 4, 256)


def test_windows_overlap_by_one_so_that_each_byte_is_predicted_once():
    windows = Windows(b"abcdefgh", 3)
    assert [bytes(window.tolist()) for window in windows] == [b"abcd", b"defg"]
    assert len(Windows(b"abcdefghij", 3)) == 3
    assert windows[0].dtype == torch.int64


def test_a_batch_is_its_windows_together(tmp_path):
    task = Text(path=_file(tmp_path, bytes(range(256)) * 2), **SMALL)
    train = pickle.loads(pickle.dumps(task.datasets()["train"]))
    assert train.__getitems__([7, 2, 0]).equal(task.collate([train[7], train[2], train[0]]))


def test_the_end_of_the_text_judges(tmp_path):
    text = bytes(range(200))
    splits = Text(path=_file(tmp_path, text), valid_share=0.25, **SMALL).datasets()
    assert {split: (len(w.text), int(w.text[0])) for split, w in splits.items()} == {
        "train": (150, 0),
        "valid": (50, 150),
    }
    assert list(Text(path=_file(tmp_path, text), valid_share=0, **SMALL).datasets()) == ["train"]


def test_any_bytes_will_do(tmp_path):
    task = Text(path=_file(tmp_path, bytes([0, 255, 200, 128] * 100)), **SMALL)
    said = task.loss(task.model(), task.datasets()["train"].__getitems__([0, 1]))
    assert said["loss"].isfinite()


def test_a_model_that_knows_nothing_needs_eight_bits():
    said = Text(**SMALL).loss_of_outputs(
        torch.zeros(2, 6, 256), torch.zeros(2, 7, dtype=torch.long)
    )
    assert said["loss"].item() == pytest.approx(math.log(256))
    assert said["bits_per_byte"].item() == pytest.approx(8)
    assert said["bits_per_byte"].shape == ()


def test_the_loss_compares_each_place_with_the_next_byte():
    batch = torch.tensor([[1, 2, 3]])
    outputs = torch.full((1, 2, 256), -100.0)
    outputs[0, 0, 2] = outputs[0, 1, 3] = 100.0
    assert Text(**SMALL).loss_of_outputs(outputs, batch)["loss"].item() == 0


def test_without_a_path_it_is_pythons_own_help():
    from pydoc_data.topics import topics

    splits = Text().datasets()
    text = torch.cat([windows.text for windows in splits.values()])
    assert bytes(text.tolist()).decode() == "".join(topics[name] for name in sorted(topics))
    assert len(splits["valid"]) > 500


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, text = Text(dropout=0.5, **SMALL).model(), torch.zeros(1, 6, dtype=torch.long)
    assert not model(text).equal(model(text))
    assert model.eval()(text).equal(model(text))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 10, "heads": 4}, "task.width=10 cannot be shared by task.heads=4; use .*=8"),
        ({"valid_share": 1.0}, "task.valid_share=1.0: wanted a part from 0 to below 1"),
        ({"dropout": 1.5}, "task.dropout=1.5: wanted a part"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Text(**settings)


@pytest.mark.parametrize("text", [b"", b"short", bytes(70)])
def test_too_short_a_text_is_refused_with_its_length(tmp_path, text):
    with pytest.raises(ConfigError, match=f"too short: of its {len(text)} bytes .*use a longer"):
        Text(path=_file(tmp_path, text)).datasets()


@pytest.mark.parametrize("name", ["absent.txt", "."])
def test_a_text_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ConfigError, match=r"task\.path=.* cannot be read \(.*give the path"):
        Text(path=str(tmp_path / name)).datasets()


def _file(folder, text):
    path = folder / "text"
    path.write_bytes(text)
    return str(path)
