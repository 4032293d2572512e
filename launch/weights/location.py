"""The file in which weights lie, for whatever a user points to: it, its folder, a run's folder."""

from __future__ import annotations

from pathlib import Path

from launch.weights.errors import WeightsError, first

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
INDEX = ".index.json"  # says which of several files holds which tensor
IN_FOLDER = (  # the names that Hugging Face gives them, and our checkpoints the first two
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
LAST = ("checkpoints/last", "last")  # in a run's folder, in its folder of checkpoints


def locate(path: Path) -> Path:
    """Return the file of weights, or the index of several, at ``path``.

    Raises ``WeightsError`` where there is none, or more than one.
    """
    path = path.expanduser()  # no shell does it after key=
    try:
        return _in_folder(path) if path.is_dir() else _file(path)
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error


def _file(path: Path) -> Path:
    if path.is_symlink() and not path.exists():
        raise WeightsError(f"{path} is a link to nothing; wanted a file of weights or its folder")
    if not path.exists():
        raise WeightsError(
            f"there is no {path} (from {Path.cwd()}); wanted a file of weights, its folder, or "
            "the folder of a run: checkpoint.init_from=PATH"
        )
    if not path.is_file():
        raise WeightsError(f"{path} is neither a file nor a folder; wanted a file of weights")
    if path.suffix.lower() not in SUFFIXES and not path.name.endswith(INDEX):
        raise WeightsError(
            f"the name {path.name} does not say how to read it; wanted one that ends in "
            f"{', '.join(SUFFIXES)} or {INDEX}"
        )
    return path


def _in_folder(path: Path) -> Path:
    for folder in (path, *(path / last for last in LAST)):
        for name in IN_FOLDER:
            if (folder / name).is_file():
                return folder / name
    names = sorted(entry.name for entry in path.iterdir())
    files = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    if files:
        raise WeightsError(
            f"the folder {path} holds {first(files)}: say which, "
            f"checkpoint.init_from={path / files[0]}"
        )
    raise WeightsError(
        f"there are no weights in the folder {path}; wanted {', '.join(IN_FOLDER)}, or a run's "
        f"{LAST[0]}; it holds {first(names) or 'nothing'}"
    )
