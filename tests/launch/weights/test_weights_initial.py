"""A model that starts from a file computes what the file's model computed, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from launch.checkpoint import collect, write
from launch.weights import WeightsError, init_from
from parallel.pipeline.materialize import materialize
from parallel.pipeline.unbuilt import unbuilt

X = torch.arange(5)


def outputs(model):
    with torch.no_grad():
        return model.eval()(X)


@pytest.fixture
def trained(make_tied):
    """A model whose running statistics are no longer the initial ones."""
    model = make_tied(1)
    model(X)
    return model


def compiled(model):
    return torch.compile(model, backend="eager")  # the wrapper is the same, and comes sooner


WRAPPED = {
    "plain": lambda m: m,
    "module": nn.DataParallel,
    "module.module": lambda m: nn.DataParallel(nn.DataParallel(m)),
    "_orig_mod": compiled,
    "_orig_mod.module": lambda m: compiled(nn.DataParallel(m)),
    "module._orig_mod": lambda m: nn.DataParallel(compiled(m)),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_C4_C5_what_a_wrapped_model_saved_gives_the_same_outputs(
    tmp_path, trained, make_tied, wrapper
):
    wanted = outputs(trained)
    names = WRAPPED[wrapper](trained).state_dict()
    assert wrapper == "plain" or all(name.startswith(f"{wrapper}.") for name in names)
    torch.save({"epoch": 1, "state_dict": names}, tmp_path / "a.pt")
    model = make_tied(2)
    assert not outputs(model).equal(wanted)
    told = init_from(tmp_path / "a.pt", model)
    assert outputs(model).equal(wanted)
    assert model.head.weight is model.embed.weight
    assert told == [
        f"initial weights from {tmp_path / 'a.pt'}: {len(names)} of {len(names)} tensors"
    ]


@pytest.mark.parametrize("wrap", [nn.DataParallel, compiled])
def test_C4_C5_a_part_that_was_wrapped_gives_the_same_outputs(tmp_path, trained, make_tied, wrap):
    wanted = outputs(trained)
    trained.encoder = wrap(trained.encoder)
    names = trained.state_dict()
    assert names.keys() != make_tied(2).state_dict().keys()
    torch.save(names, tmp_path / "a.pt")
    model = make_tied(2)
    init_from(tmp_path / "a.pt", model)
    assert outputs(model).equal(wanted)


def test_C4_a_submodule_truly_called_module_loads_bare_and_wrapped(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2))
            self.module = nn.Module()
            self.module.weight = nn.Parameter(torch.randn(2))

    wanted = Odd()
    for saved in (wanted, nn.DataParallel(wanted), nn.DataParallel(nn.DataParallel(wanted))):
        torch.save(saved.state_dict(), tmp_path / "a.pt")
        model = Odd()
        init_from(tmp_path / "a.pt", model)
        assert model.weight.equal(wanted.weight)
        assert model.module.weight.equal(wanted.module.weight)


def test_C5_a_file_of_another_model_changes_nothing(tmp_path, make_tied):
    torch.save(nn.Sequential(nn.Linear(9, 9)).state_dict(), tmp_path / "a.pt")
    model = make_tied(2)
    before = outputs(model)
    for strict in (True, False):
        with pytest.raises(WeightsError, match=r"a.pt: nothing of it fits the model"):
            init_from(tmp_path / "a.pt", model, strict)
    assert outputs(model).equal(before)


def test_what_does_not_fit_stays_as_it_was_and_is_told(tmp_path):
    torch.save({"0.weight": torch.ones(4, 3), "1.bias": torch.ones(7)}, tmp_path / "a.pt")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"a.pt: it does not fit .*checkpoint.init_strict=fal"):
        init_from(tmp_path / "a.pt", model)
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    assert init_from(tmp_path / "a.pt", model, strict=False) == [
        f"initial weights from {tmp_path / 'a.pt'}: 1 of 4 tensors; the model's own, not in "
        "the file: 0.bias [4], 1.weight [2, 4]; in both, but not alike: 1.bias: [7] in the file, "
        "[2] in the model"
    ]
    after = model.state_dict()
    assert after["0.weight"].equal(torch.ones(4, 3))
    assert all(after[name].equal(before[name]) for name in ("0.bias", "1.weight", "1.bias"))


def test_a_checkpoint_of_ours_gives_the_same_outputs(tmp_path, trained, make_tied):
    path = write(tmp_path, collect(1, trained.state_dict(), {}, {}))
    model = make_tied(2)
    init_from(path, model)  # the tied tensor is stored once
    assert outputs(model).equal(outputs(trained))


def test_complex_tensors_of_a_checkpoint_of_ours_are_taken(tmp_path):
    model = nn.Module()
    model.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    wanted = torch.randn(3, dtype=torch.complex64)
    path = write(tmp_path, collect(1, {"phase": wanted, "": torch.ones(1)}, {}, {}))
    init_from(path, model, strict=False)
    assert model.phase.equal(wanted)


@pytest.mark.parametrize("own", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype_is_the_models_own(tmp_path, own):
    theirs = nn.Linear(3, 3)
    save_file(theirs.state_dict(), tmp_path / "a.safetensors")
    model = nn.Linear(3, 3).to(own)
    init_from(tmp_path / "a.safetensors", model)
    assert model.weight.equal(theirs.weight.to(own))
    assert model.weight.requires_grad


def test_layers_that_wait_for_their_first_input_take_their_shape_from_the_file(tmp_path):
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "a.pt")
    model = nn.LazyLinear(4)
    init_from(tmp_path / "a.pt", model)
    assert model.weight.shape == (4, 3)


def test_a_model_that_refuses_what_it_has_is_an_error(tmp_path):
    class Renames(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *args):
            state_dict[f"{prefix}kernel"] = state_dict.pop(f"{prefix}weight")
            args[3].append(f"{prefix}kernel")

    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="did not take kernel"):
        init_from(tmp_path / "a.pt", Renames(2, 2))


def test_C21_a_file_from_a_gpu_loads_on_the_cpu(tmp_path):
    wanted = nn.Linear(3, 3)
    torch.save(wanted.state_dict(), tmp_path / "cpu.pt")
    with (
        zipfile.ZipFile(tmp_path / "cpu.pt") as cpu,
        zipfile.ZipFile(tmp_path / "a.pt", "w") as gpu,
    ):
        for name in cpu.namelist():
            data = cpu.read(name)
            if name.endswith("data.pkl"):  # text in a pickle: X, its length, the letters
                assert b"X\x03\x00\x00\x00cpu" in data
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            gpu.writestr(name, data)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="deserialize object on a CUDA device"):
            torch.load(tmp_path / "a.pt", weights_only=True)
    model = nn.Linear(3, 3)
    init_from(tmp_path / "a.pt", model)
    assert model.weight.equal(wanted.weight)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_C22_reading_costs_no_memory_of_the_process_its_own(tmp_path, name):
    """Pages mapped from the file are shared by all ranks; anonymous memory is each one's own."""
    code = """
        import sys
        from pathlib import Path
        import torch
        from torch import nn
        from safetensors.torch import save_file
        from launch.weights import init_from, read

        def anonymous():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

        path = Path(sys.argv[1])
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
        (torch.save if path.suffix == ".pt" else save_file)(model.state_dict(), path)
        init_from(path, model)  # once, so that what is set up at first use does not count
        before = anonymous()
        weights = read(path)
        total = sum(float(value.sum()) for value in weights.values())
        read_cost = anonymous() - before
        init_from(path, model)
        print(path.stat().st_size >> 10, read_cost, anonymous() - before)
        """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / name],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    size, read_cost, init_cost = map(int, child.stdout.split())
    assert size > 32_000
    assert read_cost < size / 8
    assert init_cost < size / 8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_taken_and_told_by_the_first_name(tmp_path, value):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved["0.bias"][1] = saved["1.weight"][0] = value
    save_file(saved, tmp_path / "a.safetensors")
    _, told = init_from(tmp_path / "a.safetensors", model)
    assert told == "the initial weights hold NaN or infinite numbers, first in 0.bias"


def test_a_mask_that_is_infinite_on_purpose_is_no_news(tmp_path):
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2, 2), -float("inf")))
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    assert len(init_from(tmp_path / "a.safetensors", model)) == 1


def save_parts(path: Path, model: nn.Module) -> None:
    """Save a model's weights in two files with an index, as larger ones are."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    places = {name: f"model-0000{at % 2 + 1}-of-00002.safetensors" for at, name in enumerate(state)}
    for file in set(places.values()):
        save_file(
            {name: value for name, value in state.items() if places[name] == file}, path / file
        )
    index = {"metadata": {}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def save_as(kind: str, path: Path, model: nn.Module) -> Path:
    if kind == "parts":
        save_parts(path, model)
        return path
    if kind == "pt":
        torch.save(model.state_dict(), path / "a.pt")
        return path / "a.pt"
    save_file(
        {name: value.clone() for name, value in model.state_dict().items()}, path / "a.safetensors"
    )
    return path / "a.safetensors"


@pytest.mark.parametrize("kind", ["safetensors", "parts", "pt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_without_memory_takes_a_files_values_and_keeps_dtype_and_ties(
    tmp_path, trained, kind, dtype
):
    path = save_as(kind, tmp_path, trained.to(dtype))
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    model = unbuilt(type(trained))
    told = init_from(path, model)
    assert told[0].endswith("9 of 9 tensors")
    materialize(model, [model], torch.device("cpu"))
    wanted = {n: v.float() if v.is_floating_point() else v for n, v in trained.state_dict().items()}
    assert all(wanted[name].equal(value) for name, value in model.state_dict().items())
    assert all(value.dtype == torch.float32 for value in model.parameters())
    assert model.head.weight is model.embed.weight
    with torch.no_grad():
        model.embed.weight.fill_(3)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files


def test_only_some_values_from_a_file_leave_the_others_to_the_constructor(tmp_path):
    save_file({"0.weight": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    torch.manual_seed(1)
    wanted = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    torch.manual_seed(1)
    model = unbuilt(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    init_from(tmp_path / "a.safetensors", model, strict=False)
    materialize(model, list(model), torch.device("cpu"))
    assert model[0].weight.equal(torch.ones(2, 2))
    assert model[0].bias.equal(wanted[0].bias)
    assert model[1].weight.equal(wanted[1].weight)


def test_a_model_on_meta_that_could_not_get_memory_is_refused(tmp_path):
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(WeightsError, match=r"no memory yet \(meta device\) for weight, bias"):
        init_from(tmp_path / "a.safetensors", model)


@pytest.mark.slow
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_a_stage_takes_memory_for_its_own_weights_of_a_file_only(tmp_path, own):
    """8 layers of 16 MiB in the file, of which one is kept; all that is anonymous counts."""
    code = """
        import sys
        from pathlib import Path
        import torch
        from torch import nn
        from safetensors.torch import save_file
        from launch.weights import init_from
        from parallel.pipeline.materialize import materialize
        from parallel.pipeline.unbuilt import unbuilt

        def resident():
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

        def make(width=2048):
            return nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))

        def stage(path, width):
            model = unbuilt(lambda: make(width))
            init_from(path, model)
            materialize(model, [model[3]], torch.device("cpu"))
            return model

        folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
        for width in (4, 2048):
            save_file(make(width).to(dtype).state_dict(), folder / f"{width}.safetensors")
        stage(folder / "4.safetensors", 4)  # once: what is set up at first use does not count
        before = resident()
        model = stage(folder / "2048.safetensors", 2048)
        print(resident() - before)
        """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path, str(own).removeprefix("torch.")],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(child.stdout) >> 10 < 48, "MiB, of 128 in all"
