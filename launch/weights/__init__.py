"""Weights from elsewhere as a model's first ones: read without running code, fitted by name."""

from launch.weights.errors import WeightsError
from launch.weights.fitting import Fitted, fit
from launch.weights.initial import init_from
from launch.weights.reading import read

__all__ = ["Fitted", "WeightsError", "fit", "init_from", "read"]
