"""Wrappers' names are taken out, those that the model has itself are not."""

from __future__ import annotations

import time

import pytest

from launch.weights.wrappers import unwrap

NET = ["encoder.0.weight", "encoder.0.bias", "head.weight"]
ODD = ["module.weight", "weight"]  # a model with a part that is truly called `module`


def taken(names: dict[str, str]) -> dict[str, str]:
    """Return the file's names for which one of the model's stands beside them."""
    return {theirs: mine for theirs, mine in names.items() if mine}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "module.module.",
        "_orig_mod.",
        "_orig_mod.module.",
        "module._orig_mod.",
        "_orig_mod.module._orig_mod.module.",
    ],
)
def test_C4_C5_prefixes_in_any_order_and_number_go(prefix):
    names = {prefix + name: name for name in NET}
    assert unwrap(names, NET) == names


def test_C4_C5_wrappers_in_the_middle_go():
    names = {
        "encoder.module.0.weight": "encoder.0.weight",
        "encoder.module.0._orig_mod.bias": "encoder.0.bias",
        "module.head._orig_mod.module.weight": "head.weight",
    }
    assert unwrap(names, NET) == names


@pytest.mark.parametrize(
    ("own", "names"),
    [
        (ODD, {"module.weight": "module.weight", "weight": "weight"}),
        (ODD, {"module.module.weight": "module.weight", "module.weight": "weight"}),
        (ODD, {"module.module.module.weight": "module.weight", "module.module.weight": "weight"}),
        (ODD, {"_orig_mod.module.weight": "module.weight", "_orig_mod.weight": "weight"}),
        (ODD, {"module._orig_mod.weight": "module.weight", "weight": "weight"}),
        (["module.weight"], {"module.weight": "module.weight"}),
        (["module.weight"], {"module.module.weight": "module.weight"}),
        (["module.weight"], {"weight": ""}),
        (["module.module.w", "b"], {"module.module.w": "module.module.w", "b": "b"}),
        (["module.module.w", "b"], {"module.module.module.w": "module.module.w", "module.b": "b"}),
        (["a.module.w", "module.a.w"], {"a.module.w": "a.module.w", "module.a.w": "module.a.w"}),
        (
            ["a.module.w", "module.a.w"],
            {"module.a.module.w": "a.module.w", "module.module.a.w": "module.a.w"},
        ),
    ],
)
def test_C4_a_submodule_truly_called_module_is_not_damaged(own, names):
    assert unwrap(names, own) == taken(names)


def test_names_that_mean_nothing_do_not_spoil_the_others():
    odd = {"module.module.weight": "module.weight", "module.weight": "weight", "module.ema": ""}
    assert unwrap(odd, ODD) == taken(odd)
    net = {"module.head.weight": "head.weight", "step": "", "head": "", "module": ""}
    assert unwrap(net, NET) == {"module.head.weight": "head.weight"}


def test_of_two_names_for_one_tensor_the_shorter_counts():
    assert unwrap(["module.head.weight", "head.weight"], NET) == {"head.weight": "head.weight"}


def test_a_name_of_nothing_but_wrappers_ends_soon():
    start = time.monotonic()
    assert unwrap({"module." * 100_000 + "weight"}, ["module.module.module.weight"]) == {}
    assert unwrap({"module." * 30 + "x"}, ["module.module.module.weight"]) == {}
    assert time.monotonic() - start < 5
