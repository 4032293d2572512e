"""What a run is: a typed configuration from files and the command line, and what it builds."""

from launch.config.annotations import plain_defaults
from launch.config.building import build, check_target, find_target
from launch.config.command import Parsed, parse
from launch.config.components import build_strategy, build_task
from launch.config.errors import ConfigError
from launch.config.help import help_text
from launch.config.importing import extend_import_path, import_target
from launch.config.interpolation import with_run_values
from launch.config.loading import load, to_dict, to_yaml
from launch.config.schema import (
    BestBy,
    Checkpoint,
    Config,
    Data,
    EarlyStop,
    Evaluate,
    Fault,
    Launch,
    Log,
    Train,
    key,
)

__all__ = [
    "BestBy",
    "Checkpoint",
    "Config",
    "ConfigError",
    "Data",
    "EarlyStop",
    "Evaluate",
    "Fault",
    "Launch",
    "Log",
    "Parsed",
    "Train",
    "build",
    "build_strategy",
    "build_task",
    "check_target",
    "extend_import_path",
    "find_target",
    "help_text",
    "import_target",
    "key",
    "load",
    "parse",
    "plain_defaults",
    "to_dict",
    "to_yaml",
    "with_run_values",
]
