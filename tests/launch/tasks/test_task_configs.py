from pathlib import Path

import pytest
import torch

from launch.config import build, build_task, load, with_run_values

CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = (
    "autoencoder",
    "autoencoder_pipeline",
    "digits",
    "images",
    "net",
    "supervised",
    "text",
    "text_pipeline",
)
SMALL = {
    "autoencoder": ["task.image_size=8", "task.channel_scale=0.01"],
    "autoencoder_pipeline": ["task.image_size=8", "task.channel_scale=0.01"],
    "text_pipeline": ["task.width=8", "task.layers=1", "task.context=8"],
    "text": ["task.width=8", "task.layers=1", "task.context=8"],
}


def test_each_task_has_its_file():
    assert sorted(path.stem for path in CONFIGS.glob("*.yaml")) >= sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_opens_with_command_machine_minutes_and_number(name):
    text = (CONFIGS / f"{name}.yaml").read_text()
    head = text[: text.index("\nname:")]
    assert all(line.startswith("#") for line in head.splitlines())
    for word in ("command:", "machine:", "minutes:", "number:"):
        assert f"# {word}" in head
    assert f"./run.sh configs/{name}.yaml" in head
    assert f"torchrun --nproc_per_node=2 -m launch.train configs/{name}.yaml" in head


@pytest.mark.parametrize("name", NAMES)
def test_what_a_file_names_takes_a_step(name, tmp_path):
    more = [f"task.folder={pictures(tmp_path)}"] if name == "images" else SMALL.get(name, [])
    config = load([CONFIGS / f"{name}.yaml"], more)
    assert config.name == name
    task = build_task(config.task)
    task.prepare()
    model, splits = task.model(), task.datasets()
    optimizer = build(config.optimizer, torch.optim.Optimizer, "optimizer", model.parameters())
    if config.scheduler:
        for steps in (*range(1, 101), 820):
            named = with_run_values(config.scheduler, steps, 5)
            build(named, object, "scheduler", optimizer)
    said = task.loss(model, task.collate([splits["train"][n] for n in range(2)]))
    (said["loss"] if isinstance(said, dict) else said).backward()
    optimizer.step()


def pictures(folder):
    from PIL import Image

    for n in range(4):
        Image.new("RGB", (8, 8)).save(folder / f"{n}.png")
    return folder


def test_the_built_in_run_is_the_one_of_its_file():
    file, built_in = load([CONFIGS / "digits.yaml"]), load()
    assert build_task(file.task) == build_task(built_in.task)
    assert (file.optimizer, file.train, file.scheduler) == (
        built_in.optimizer,
        built_in.train,
        built_in.scheduler,
    )
