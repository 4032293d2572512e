from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
import torch
from torch import nn
from torch.optim import SGD

from parallel import DDP, Pipeline, Settings, Single, UsageError, World
from parallel.memory import PROCESS, predict
from tests.parallel.memory_cases import (
    META,
    Case,
    attention,
    convolutions,
    copying,
    linear,
    pipeline,
    tokens,
)


def test_what_is_taken_is_told_apart():
    [own] = Case(linear, (2048,), keys=(("fused", True),)).predicted()
    size = sum(p.nbytes for p in linear().parameters())
    numbers = len(list(linear().parameters())) * 4  # a step counter each
    assert own.parameters == size
    assert own.optimizer == 2 * size + numbers
    assert own.gradients <= size
    assert own.inputs == 2048 * 64 * 4
    assert own.activations >= 2 * 2048 * 512 * 4
    fields = (own.parameters, own.gradients, own.optimizer, own.inputs, own.activations)
    assert own.peak == sum(fields) + own.transient
    assert own.need == own.peak + own.workspace > own.peak


def test_gpipe_holds_all_microbatches_and_1f1b_what_is_in_flight():
    counts = (64,) * 8
    gpipe = Case(linear, counts, pipeline([2], "gpipe", 8), 2, optimizer=SGD).predicted()
    flying = Case(linear, counts, pipeline([2], "1f1b", 8), 2, optimizer=SGD).predicted()
    message = 64 * 512 * 4
    assert gpipe[0].activations >= 8 * message
    assert 3 * message <= flying[0].activations <= 7 * message


@pytest.mark.parametrize(
    ("split", "microbatches", "waiting"), [(3, 8, [1]), (2, 8, [0]), (2, 1, [0, 1])]
)
def test_a_stage_that_waits_for_another_has_no_memory_yet_for_what_comes(
    split, microbatches, waiting
):
    counts = (64,) * microbatches
    way = pipeline([split], microbatches=microbatches)
    found = Case(linear, counts, way, 2, optimizer=SGD).predicted()
    message = 64 * 512 * 4
    for stage, own in enumerate(found):
        assert own.workspace == PROCESS - (message if stage in waiting else 0)


def test_checkpoints_lower_activations():
    plain = Case(attention, (8,) * 4, pipeline([3], "gpipe"), 2, loss=tokens).predicted()
    again = Case(attention, (8,) * 4, pipeline([3], "gpipe", every=2), 2, loss=tokens).predicted()
    assert again[0].activations < 0.5 * plain[0].activations


def test_replicas_are_alike():
    found = Case(convolutions, (8, 8), pipeline([4], microbatches=2), 4).predicted()
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_ddp_keeps_parcels_beside_gradients_of_earlier_rounds():
    [alone] = Case(linear, (16, 16), optimizer=SGD).predicted()
    one, two = Case(linear, (16, 16), DDP(0.5), 2, optimizer=SGD).predicted()
    size = sum(p.nbytes for p in linear().parameters())
    assert one == two
    assert one.peak - alone.peak == pytest.approx(size, rel=0.05)


def test_a_large_model_is_predicted_in_seconds_and_takes_no_memory():
    case = Case(linear)
    with META:
        model = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(16)))
    before, start = resident(), perf_counter()
    [own] = predict(Single(), case.work(model, World()), [torch.empty(4096, 8192, device="meta")])
    assert own.peak > 16 * 8192 * 8192 * 16
    assert perf_counter() - start < 30
    assert resident() - before < 200e6


def resident():
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x]
    return int(line.split()[1]) * 1024


def test_nothing_is_changed_by_a_prediction():
    case = Case(convolutions)
    torch.manual_seed(3)
    model = case.make().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predict(case.strategy, case.work(model, World()), case.batches())
    drawn = torch.rand(1)
    torch.manual_seed(3)
    case.make()
    case.batches()
    case.batches()
    assert drawn == torch.rand(1)
    assert not model.training
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_convolutions_take_workspace_and_more_of_it_in_float64():
    case = Case(copying, (8,))
    [own] = case.predicted()
    [double] = replace(case, settings=Settings("float64")).predicted()
    [plain] = Case(linear, (8,)).predicted()
    pixels = 8 * 16 * 16 * 16 * 4  # bytes of what the first returns
    assert own.workspace - plain.workspace >= pixels
    assert double.workspace - plain.workspace >= 9 * pixels


def test_a_prediction_wants_a_batch():
    case = Case(linear)
    with pytest.raises(UsageError, match="at least one batch"):
        predict(Single(), case.work(linear(), World()), [])


def test_fewer_processes_than_stages_are_refused():
    with pytest.raises(UsageError, match="wants at least 2 processes"):
        Case(linear, (16,), pipeline([2]), 1).predicted()


def test_a_model_that_is_built_by_stages_is_predicted_like_any():
    case = Case(linear, (64,) * 4, replace(pipeline([2]), build="stage"), 2)
    model = case.strategy.construct(linear)
    found = predict(case.strategy, case.work(model, World(size=2)), case.batches())
    assert found == case.predicted()
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_cut_that_would_be_timed_is_found_by_arithmetic(precision):
    case = Case(linear, (64,) * 8, Pipeline(2), 2, settings=Settings(precision))
    first, second = case.predicted()
    each = 4 if precision == "float32" else 8
    size = sum(p.numel() for p in linear().parameters()) * each
    assert first.parameters + second.parameters == size
    assert first.parameters > 0 < second.parameters


def test_stages_of_a_model_that_has_numbers_take_what_those_of_one_without_take():
    case = Case(linear, (16, 16), pipeline([2], microbatches=2), 2)
    batches = [torch.rand(16, 64)] * 2
    found = predict(case.strategy, case.work(linear(), World(size=2)), batches)
    assert found == case.predicted()
