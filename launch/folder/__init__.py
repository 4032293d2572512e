"""The folder of one run: where things lie in it, who may write to it, what an earlier run left."""

from launch.folder.differences import differences
from launch.folder.disk import FolderError
from launch.folder.found import Found, inspect, saved_steps
from launch.folder.run import OpenFolder, RunFolder, open_folder

__all__ = [
    "FolderError",
    "Found",
    "OpenFolder",
    "RunFolder",
    "differences",
    "inspect",
    "open_folder",
    "saved_steps",
]
