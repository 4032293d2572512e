import pytest
from torch.optim import SGD

from parallel import DDP, Settings, World
from tests.parallel.memory_cases import (
    Case,
    attention,
    convolutions,
    counted,
    linear,
    pipeline,
    tied,
    tokens,
)

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


WITHIN = 0.01
ALONE = {
    "linear": Case(linear),
    "SGD": Case(linear, optimizer=SGD),
    "momentum": Case(linear, optimizer=SGD, keys=(("momentum", 0.9),)),
    "fused": Case(linear, keys=(("fused", True),)),
    "foreach": Case(linear, keys=(("foreach", True),)),
    "accumulated": Case(linear, (16, 16, 7)),
    "clipped": Case(linear, settings=Settings(clip_norm=0.1)),
    "convolutions": Case(convolutions),
    "float64": Case(convolutions, settings=Settings("float64")),
    "bfloat16": Case(attention, loss=tokens, settings=Settings("bfloat16")),
    "tokens": Case(attention, (8, 8), loss=tokens),
    "tied": Case(tied),
}
TOGETHER = {
    "ddp": Case(convolutions, strategy=DDP(), processes=2),
    "ddp accumulated": Case(linear, (16, 16), DDP(0.5), 2, optimizer=SGD),
    "gpipe": Case(linear, (128,) * 4, pipeline([2], "gpipe"), 2),
    "1f1b": Case(linear, (256, 256, 256, 99), pipeline([1]), 2),
    "1f1b, again by 2": Case(attention, (8,) * 4, pipeline([3], every=2), 2, loss=tokens),
    "bfloat16": Case(attention, (8,) * 4, pipeline([3]), 2, settings=Settings("bfloat16")),
    "replicas": Case(convolutions, (8, 8), pipeline([4], microbatches=2), 4),
    "tied": Case(tied, (16, 16), pipeline([2], microbatches=2), 2),
}


def body(world, name, expected):
    peak = counted(TOGETHER[name], world)
    assert abs(peak / expected[world.rank] - 1) < WITHIN, (name, peak, expected)


@pytest.mark.parametrize("name", ALONE)
def test_the_prediction_is_what_real_training_takes(name):
    [own] = ALONE[name].predicted()
    peak = counted(ALONE[name], World())
    assert own.peak == pytest.approx(peak, rel=WITHIN)


@pytest.mark.parametrize("name", TOGETHER)
def test_the_prediction_is_what_each_process_takes(in_ranks, name):
    case = TOGETHER[name]
    expected = [own.peak for own in case.predicted()]
    assert len(expected) == case.processes
    in_ranks(case.processes, body, name, expected)
