"""From datasets to the shares of global batches that engines train on."""

from launch.data.evaluation import EvaluationBatches
from launch.data.loader import TrainingShares, loader
from launch.data.plan import check_batch, check_datasets, compare_datasets
from launch.data.sampler import GlobalBatchSampler, Part, StepParts
from launch.data.seeds import derive, seed_all
from launch.data.transfer import Transfer

__all__ = [
    "EvaluationBatches",
    "GlobalBatchSampler",
    "Part",
    "StepParts",
    "TrainingShares",
    "Transfer",
    "check_batch",
    "check_datasets",
    "compare_datasets",
    "derive",
    "loader",
    "seed_all",
]
