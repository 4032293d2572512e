"""Each process makes its own layers, and no more than one foreign tensor at a time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from launch.tasks.text import Text
from parallel.errors import UsageError
from parallel.pipeline.layers import named_tensors
from parallel.pipeline.materialize import materialize
from parallel.pipeline.unbuilt import unbuilt

CPU = torch.device("cpu")


def stage(make, own, seed=5):
    """Return the model of which the layers in ``own`` are made."""
    torch.manual_seed(seed)
    model = unbuilt(make)
    materialize(model, [model[at] for at in own], CPU)
    return model


@pytest.mark.parametrize("own", [[0], [1, 2], [5], [0, 5], []])
def test_own_layers_hold_the_unsplit_models_bits_and_others_nothing(own):
    torch.manual_seed(5)
    whole = Text().model()
    after = torch.get_rng_state()
    model = stage(Text().model, own)
    names = named_tensors(model)
    for at in range(len(model)):
        for name in named_tensors(model[at]):
            full = f"{at}.{name}"
            if at in own:
                assert names[full].equal(named_tensors(whole)[full])
            else:
                assert names[full].is_meta
    if own:
        assert torch.get_rng_state().equal(after)


def test_a_tie_between_own_and_foreign_layers_stays():
    def tied():
        model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False))
        model[2].weight = model[0].weight
        return model

    torch.manual_seed(5)
    wanted = tied()
    for own in ([0], [2], [0, 2]):
        model = stage(tied, own)
        assert model[2].weight is model[0].weight
        assert model[2].weight.equal(wanted[2].weight)
        assert model[1].weight.is_meta


def test_parameters_keep_their_attributes_and_layers_that_list_them_see_the_new_ones():
    def make():
        layer = nn.LSTM(2, 3)
        layer.weight_hh_l0.no_decay = True
        layer.bias_hh_l0.requires_grad_(False)
        return nn.Sequential(layer)

    model = stage(make, [0])
    assert model[0].weight_hh_l0.no_decay
    assert not model[0].bias_hh_l0.requires_grad
    assert model[0](torch.randn(4, 2))[0].shape == (4, 3)


def test_values_that_are_there_stay_and_draw_nothing():
    model = unbuilt(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    theirs = nn.Linear(2, 2)
    model[0].load_state_dict(theirs.state_dict(), assign=True)
    before = torch.get_rng_state()
    materialize(model, [model[0]], CPU)
    assert torch.get_rng_state().equal(before)
    assert model[0].weight.equal(theirs.weight)
    assert model[0].weight.data_ptr() != theirs.weight.data_ptr()


def test_values_that_are_there_make_a_proof_needless_for_them_alone():
    def make():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[0].bias = nn.Parameter(torch.empty(2))
        return model

    torch.manual_seed(5)
    wanted = make()
    torch.manual_seed(5)
    model = unbuilt(make)
    with pytest.raises(UsageError, match=r"leaves 0.bias without values"):
        materialize(model, [model[0]], CPU)
    model[0].bias = nn.Parameter(torch.ones(2))
    materialize(model, [model[0]], CPU)
    assert model[0].weight.equal(wanted[0].weight)
    assert model[0].bias.tolist() == [1, 1]


def test_a_foreign_layer_without_values_is_no_hindrance():
    def make():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[0].bias = nn.Parameter(torch.empty(2))
        return model

    assert not stage(make, [1])[1].weight.is_meta


def test_a_model_on_meta_that_brings_no_recipe_is_refused():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"no memory \(meta device\) for 0.weight"):
        materialize(model, list(model), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("again", ["", ".apply(init)"])
def test_a_process_never_holds_more_than_its_own_and_one_foreign_tensor(again):
    """16 layers of 16 MiB, of which it keeps one; ``again`` draws all of them a second time."""
    code = f"""
        import resource, torch
        from torch import nn
        from parallel.pipeline.materialize import materialize
        from parallel.pipeline.unbuilt import unbuilt

        def init(layer):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)

        def make(width):
            return nn.Sequential(*(nn.Linear(width, width) for _ in range(16))){again}

        def stage(width):
            model = unbuilt(lambda: make(width))
            materialize(model, [model[9]], torch.device("cpu"))
            return model

        stage(4)  # once, so that what is set up at first use does not count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = stage(2048)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(child.stdout) >> 10 < 48, "MiB, of 256 in all"
