import pytest
from torch.optim import SGD

from parallel import Settings, UsageError
from parallel.sharded import FSDP
from tests.parallel.memory_cases import Case, attention, convolutions, counted, linear, tokens

pytestmark = pytest.mark.slow  # its gist is in the quick suite too


WITHIN = 0.01
CASES = {
    "plain": Case(linear, (2048,), FSDP(), 2),
    "SGD": Case(linear, (2048,), FSDP(), 2, optimizer=SGD),
    "fused": Case(linear, (2048,), FSDP(), 2, keys=(("fused", True),)),
    "kept": Case(linear, (2048,), FSDP(reshard_after_forward=False), 2),
    "one block": Case(linear, (2048,), FSDP(blocks=[]), 2),
    "accumulated": Case(linear, (2048, 2048), FSDP(), 2),
    "again": Case(attention, (32,), FSDP(checkpoint_every=1), 2, loss=tokens),
    "low": Case(attention, (32,), FSDP(mixed_precision=True), 2),
    "bfloat16": Case(attention, (32,), FSDP(), 2, settings=Settings("bfloat16")),
    "three": Case(linear, (2048,), FSDP(), 3),
    "convolutions": Case(convolutions, (32,), FSDP(), 2),
}


def body(world, name, expected):
    peak = counted(CASES[name], world)
    assert abs(peak / expected - 1) < WITHIN, (name, peak, expected)


@pytest.mark.parametrize("name", CASES)
def test_the_prediction_is_what_each_process_takes(in_ranks, name):
    case = CASES[name]
    found = case.predicted()
    assert len(found) == case.processes
    in_ranks(case.processes, body, name, found[0].peak)


def test_slices_are_a_part_of_the_whole():
    one, two = (Case(linear, (2048,), FSDP(), n).predicted()[0] for n in (1, 2))
    assert two.parameters == pytest.approx(one.parameters / 2, rel=0.02)
    assert two.optimizer == pytest.approx(one.optimizer / 2, rel=0.02)


def refused(world):
    with pytest.raises(UsageError, match="in a process of its own"):
        CASES["plain"].predicted()


def test_it_is_not_predicted_by_a_process_that_trains(in_ranks):
    in_ranks(2, refused)
