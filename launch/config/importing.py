"""What a `_target_` names, imported, and the place in a user's file where that went wrong."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from launch.config.errors import ConfigError, nearest, shown


def extend_import_path(files: Sequence[Path | str]) -> None:
    """Let modules beside the configuration files be imported, those of the first file first."""
    folders = dict.fromkeys(str(Path(file).resolve().parent) for file in files)
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def import_target(target: Any, key: str) -> Any:
    """Return what ``package.module.Name`` names: a class, a function, or an attribute of one."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise ConfigError(f"{key}: wanted a name such as package.module.Name; met {shown(target)}")
    first, *rest = target.split(".")
    if not rest:
        raise ConfigError(f"{key}={target}: wanted the module too, such as my_module.{target}")
    found, name = _import_module(first, f"{key}={target}"), first
    for part in rest:
        found = _attribute(found, name, part, f"{key}={target}")
        name = f"{name}.{part}"
    return found


def failure(error: BaseException) -> str:
    """Return an exception's type, message and file:line, with what may be behind it."""
    said = str(error)
    place = _place(error)
    if isinstance(error, SyntaxError):
        said = error.msg
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text += f" ({place})" if place else ""
    if "torchvision::nms" in said:
        text += "; torchvision was built for another torch: install the release that matches it"
    return text


def _attribute(found: Any, name: str, part: str, wish: str) -> Any:
    """Return ``part`` of what ``name`` is; ``wish`` is the setting that asks for it."""
    try:
        return getattr(found, part)
    except AttributeError:
        pass
    except Exception as error:  # a lazy package fails here
        raise ConfigError(f"{wish}: {name}.{part} raised {failure(error)}") from error
    if isinstance(found, ModuleType) and _is_module(f"{name}.{part}"):
        return _import_module(f"{name}.{part}", wish)
    what = "module" if isinstance(found, ModuleType) else "class"
    raise ConfigError(f"{wish}: {what} {name} has no {part!r}{nearest(part, dir(found))}")


def _import_module(name: str, wish: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is run
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise ConfigError(
                f"{wish}: there is no module {name!r}; searched are the configuration "
                "file's folder, the current folder and the installed packages"
            ) from None
        raise ConfigError(f"{wish}: importing {name} raised {failure(error)}") from error


def _is_module(name: str) -> bool:
    """Whether a package has a module of that full name."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is a module, not a package
        return False


def _place(error: BaseException) -> str:
    """Return file:line of the innermost frame that is neither ours nor the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen")
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
