"""How a failure is told."""

from launch.failures import TrainingError, describe
from parallel import DisagreementError


def test_what_all_ranks_raise_alike_is_told_in_its_own_words_alone():
    for kind in (DisagreementError, TrainingError):
        failure = describe(kind("0.weight on rank 1: why, and what to do"), rank=1, step=2)
        expected = "the run failed after step 2: 0.weight on rank 1: why, and what to do"
        assert failure.text(world_size=2) == expected
        assert not failure.is_usage
