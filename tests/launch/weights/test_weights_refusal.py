"""A file may hold code; reading it runs none."""

from __future__ import annotations

import os
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from launch.weights import WeightsError, read


class Hostile:
    """Unpickled, it calls ``call``."""

    def __init__(self, call, *words):
        self.call, self.words = call, words

    def __reduce__(self):
        return self.call, self.words


def hostile(folder):
    """Return what would create ``folder/ran`` if it were unpickled, in four ways."""
    path = folder / "ran"
    return [
        Hostile(os.system, f"touch {path}"),
        Hostile(os.mkdir, str(path)),
        Hostile(eval, f"__import__('os').mkdir({str(path)!r})"),
        Hostile(Path.touch, path),
    ]


def refusal(path):
    """Return in which words ``path`` is refused, and whether anything in it ran."""
    with pytest.raises(WeightsError) as error:
        read(path)
    return str(error.value), path.with_name("ran").exists()


def test_the_hostile_files_would_run(tmp_path):
    for thing in hostile(tmp_path):
        pickle.loads(pickle.dumps(thing))
        path = tmp_path / "ran"
        assert path.exists()
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("zipped", [True, False])
def test_D21_code_in_a_file_of_torch_save_does_not_run(tmp_path, weights, number, zipped):
    found = {"state_dict": weights, "extra": hostile(tmp_path)[number]}
    torch.save(found, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    words, ran = refusal(tmp_path / "a.pt")
    assert re.search("reading it would call .*nothing in it was run", words)
    assert not ran


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_D21_code_in_a_bare_pickle_does_not_run(tmp_path, number, protocol):
    (tmp_path / "a.ckpt").write_bytes(pickle.dumps(hostile(tmp_path)[number], protocol))
    words, ran = refusal(tmp_path / "a.ckpt")
    assert re.search("nothing in it was run", words)
    assert not ran


@pytest.mark.parametrize("number", range(4))
def test_D21_code_under_a_safetensors_name_does_not_run(tmp_path, weights, number):
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(hostile(tmp_path)[number]))
    words, ran = refusal(tmp_path / "model.safetensors")
    assert re.search("no whole safetensors file", words)
    assert not ran
    torch.save({**weights, "x": hostile(tmp_path)[number]}, tmp_path / "model.safetensors")
    words, ran = refusal(tmp_path / "model.safetensors")
    assert re.search("no whole safetensors file", words)
    assert not ran


def test_D21_code_in_a_shard_does_not_run(tmp_path):
    (tmp_path / "a.bin").write_bytes(pickle.dumps(hostile(tmp_path)[0], 2))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"w": "a.bin"}}')
    words, ran = refusal(index)
    assert re.search("nothing in it was run", words)
    assert not ran


def test_D21_a_variable_of_torchs_cannot_allow_it(tmp_path, weights, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({**weights, "x": hostile(tmp_path)[0]}, tmp_path / "a.pt")
    words, ran = refusal(tmp_path / "a.pt")
    assert re.search("nothing in it was run", words)
    assert not ran


def test_D21_settings_of_a_library_among_the_weights_are_named(tmp_path, weights):
    torch.save({"model": weights, "config": OmegaConf.create({"a": 1})}, tmp_path / "a.pt")
    words, ran = refusal(tmp_path / "a.pt")
    assert re.search(r"would call omegaconf.dictconfig.DictConfig.* take the weights", words)
    assert not ran


def test_D21_a_whole_module_is_refused_by_name(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "a.pt")
    words, ran = refusal(tmp_path / "a.pt")
    assert re.search(r"would call torch.nn.modules.linear.Linear\.", words)
    assert not ran


def test_D21_a_scripted_module_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "a.pt")
    words, ran = refusal(tmp_path / "a.pt")
    assert re.search("TorchScript", words)
    assert not ran
