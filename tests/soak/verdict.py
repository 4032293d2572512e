"""What a run left on the disk, read without any of the code that wrote it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from history import faults, history

OF_TIME = ("trained_s",)  # the keys of state.json that may differ


def status(folder: Path) -> str | None:
    """Return the state in status.json; None where there is none or it cannot be read."""
    try:
        return json.loads((folder / "runs/soak/status.json").read_text())["state"]
    except (OSError, ValueError, KeyError):
        return None


def last_checkpoint(folder: Path) -> int:
    """Return the newest step that is saved, 0 for none."""
    found = (folder / "runs/soak/checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


def broken_checkpoints(folder: Path) -> list[str]:
    """Return what is wrong with folders that bear a checkpoint's name."""
    found = []
    for path in (folder / "runs/soak/checkpoints").glob("step-*"):
        try:
            files = json.loads((path / "MANIFEST.json").read_text())["files"]
            wrong = [
                name
                for name, entry in files.items()
                if hashlib.sha256((path / name).read_bytes()).hexdigest() != entry["sha256"]
            ]
        except FileNotFoundError:
            if path.exists():  # else a run that is still leaving has just removed it
                found.append(f"{path.name} lacks a file")
            continue
        found += [f"{path.name}/{name} is not what its manifest says" for name in wrong]
    return found


def compare(broken: Path, whole: Path) -> list[str]:
    """Return what differs between two completed runs: bytes, state, or samples."""
    last = [folder / "runs/soak/checkpoints/last" for folder in (broken, whole)]
    mine, theirs = ({p.name: p.read_bytes() for p in f.glob("*.safetensors")} for f in last)
    found = [
        f"{name} has other bytes than the unbroken run's"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    states = [json.loads((path / "state.json").read_text()) for path in last]
    found += [
        f"state.json: {key} differs: {states[0].get(key)!s:.80} {states[1].get(key)!s:.80}"
        for key in sorted((states[0].keys() | states[1].keys()) - set(OF_TIME))
        if states[0].get(key) != states[1].get(key)
    ]
    steps, others = history(broken), history(whole)
    found += faults(steps) + [f"the unbroken run: {why}" for why in faults(others)]
    if steps.keys() != others.keys():
        found.append(f"{len(steps)} steps, the unbroken run has {len(others)}")
    other = [k for k in steps.keys() & others.keys() if steps[k].ranks != others[k].ranks]
    if other:
        found.append(f"steps {sorted(other)[:10]} have other samples than in the unbroken run")
    return found
