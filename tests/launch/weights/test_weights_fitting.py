"""What fits a model, what does not, and how that is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from launch.weights import WeightsError, fit


def test_weights_come_under_the_models_own_names(make_tied):
    theirs = {f"module.{name}": value for name, value in make_tied(1).state_dict().items()}
    fitted = fit(theirs, make_tied(2))
    assert fitted.is_whole
    assert fitted.weights.keys() == make_tied(2).state_dict().keys()


@pytest.mark.parametrize("absent", ["head.weight", "embed.weight"])
def test_a_tied_tensor_may_be_there_under_one_name_only(make_tied, absent):
    theirs = make_tied(1).state_dict()
    kept = theirs.pop(absent)
    fitted = fit(theirs, make_tied(2))
    assert fitted.is_whole
    assert fitted.weights[absent].equal(kept)


def test_two_tensors_do_not_fit_where_the_model_has_one(make_tied):
    theirs = make_tied(1).state_dict()
    theirs["head.weight"] = theirs["head.weight"] + 1
    with pytest.raises(WeightsError, match=r"head.weight: one tensor with embed.weight in the m"):
        fit(theirs, make_tied(2))
    assert fit(theirs, make_tied(2), strict=False).weights["head.weight"] is theirs["embed.weight"]


def test_one_message_lists_all_that_does_not_fit_with_shapes():
    theirs = {f"old.{n}": torch.ones(2, n) for n in range(5)}
    theirs |= {"0.weight": torch.ones(4, 3), "1.bias": torch.ones(7)}
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with pytest.raises(WeightsError) as met:
        fit(theirs, model)
    assert str(met.value) == (
        "it does not fit the model. the model's own, not in the file: 0.bias [4], "
        "1.weight [2, 4]; in the file, not in the model: old.0 [2, 0], old.1 [2, 1], old.2 [2, 2] "
        "and 2 more; in both, but not alike: 1.bias: [7] in the file, [2] in the model. To take "
        "what fits, 1 of the model's 4 tensors, and leave the others as it made them: "
        "checkpoint.init_strict=false"
    )
    fitted = fit(theirs, model, strict=False)
    assert fitted.weights.keys() == {"0.weight"}
    assert fitted.missing == ["0.bias [4]", "1.weight [2, 4]"]
    assert len(fitted.ignored) == 5
    assert fitted.differing == ["1.bias: [7] in the file, [2] in the model"]


@pytest.mark.parametrize("strict", [True, False])
def test_C5_a_file_of_which_nothing_fits_is_refused(strict):
    theirs = {"layers.0.w": torch.ones(2), "0.bias": torch.ones(9)}
    with pytest.raises(WeightsError, match=r"nothing of it fits .* random .*0.weight \[4, 3\]"):
        fit(theirs, nn.Sequential(nn.Linear(3, 4)), strict)


@pytest.mark.parametrize(("theirs", "own"), [([1], []), ([], [1]), ([2, 3], [3, 2]), ([6], [2, 3])])
def test_a_shape_must_be_the_same(theirs, own):
    model = nn.Linear(1, 1)
    model.register_buffer("scale", torch.ones(own))
    weights = {**model.state_dict(), "scale": torch.ones(theirs)}
    with pytest.raises(WeightsError, match=r"scale: .* in the file, .* in the model"):
        fit(weights, model)


@pytest.mark.parametrize(("theirs", "own"), [("float32", "int64"), ("complex64", "float32")])
def test_a_dtype_that_would_lose_its_kind_does_not_fit(theirs, own):
    model = nn.Linear(1, 1)
    model.register_buffer("scale", torch.ones(2, dtype=getattr(torch, own)))
    weights = {**model.state_dict(), "scale": torch.ones(2, dtype=getattr(torch, theirs))}
    with pytest.raises(WeightsError, match=f"scale: {theirs} in the file, {own} in the model"):
        fit(weights, model)


def test_files_older_than_batch_norms_counter_fit(make_tied):
    theirs = make_tied(1).state_dict()
    del theirs["encoder.1.num_batches_tracked"]
    assert fit(theirs, make_tied(2)).is_whole
