"""What --help shows."""

from dataclasses import fields, is_dataclass

import pytest

from launch.config import Config, help_text, to_dict
from launch.config.words import full_names


def test_every_key_is_shown_with_its_meaning():
    lines = help_text().splitlines()
    for name in full_names(Config):
        if not is_dataclass(getattr(Config(), name.partition(".")[0])) or "." in name:
            assert any(line.strip().startswith(name) for line in lines), name


def test_defaults_stand_in_one_column():
    lines = {line.split()[0]: line for line in help_text().splitlines() if line.strip()}
    starts = {lines[key].index(f" {value} ") for key, value in SHOWN.items()}
    assert len(starts) == 1


SHOWN = {
    "train.epochs": "20",
    "train.max_steps": "null",
    "train.compile": "false",
    "optimizer._target_": "torch.optim.AdamW",
    "early_stop.patience": "3",
}


@pytest.mark.parametrize(
    ("module", "usage"),
    [
        ("launch.train", "torchrun --nproc_per_node=2 -m launch.train [FILE.yaml ...] [key=value"),
        ("launch.plan", "python -m launch.plan [FILE.yaml ...] [key=value ...] [--flag ...]"),
    ],
)
def test_usage_comes_first(module, usage):
    assert help_text(module).startswith(f"usage: {usage}")


def test_flags_are_the_entry_points_own():
    assert "--minutes M" in help_text("launch.compare", [("--minutes M", "for each strategy")])


def test_it_fits_a_terminal_and_ends_with_where_to_look():
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= 100
    assert "launch/tasks" in lines[-2]
    assert "configs/" in lines[-1]


def test_choices_are_named():
    assert "min, max" in help_text()
    assert "forkserver" in help_text()


def test_the_schema_has_no_key_without_a_meaning():
    for section in [Config(), *vars(Config()).values()]:
        for field in fields(section) if is_dataclass(section) else ():
            value = getattr(section, field.name)
            assert is_dataclass(value) or field.metadata["help"], field.name
    assert to_dict(Config())
