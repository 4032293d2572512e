"""Training one model in stages, each on its own device, microbatch after microbatch."""

from parallel.pipeline.strategy import ModelParallel, Pipeline

__all__ = ["ModelParallel", "Pipeline"]
