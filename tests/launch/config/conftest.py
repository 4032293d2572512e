"""Configuration files in a folder of their own, and an import path that is put back."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

MODULE = """
    from __future__ import annotations

    import functools
    from dataclasses import dataclass, field
    from typing import Any, Literal, Mapping

    from torch import nn

    from launch.config import key
    from launch.task import Task
    from parallel import Strategy

    thing = 3


    class Whole(Task):
        def datasets(self): return {}
        def model(self): return nn.Linear(1, 1)
        def loss(self, model, batch): return model(batch).mean()


    @dataclass
    class Crop:
        size: int
        mode: str = "edge"


    @dataclass
    class Typed(Whole):
        path: str
        width: int
        note: str = "none"
        tags: list[str] = field(default_factory=list)
        pair: tuple[float, float] = (0.0, 1.0)
        mode: Literal["none", "full"] = "full"
        seen: str | None = None
        depth: int = key(3, "layers", at_least=1)
        kind: str = key("big", "kind", choices=("big", "small"))
        crop: Crop | None = None
        net: nn.Module | None = None
        spec: Mapping[str, Any] = field(default_factory=dict)
        anything: Any = None

        def __post_init__(self):
            if self.width == 13:
                raise ValueError("13 brings no luck")


    class Plain(Whole):
        def __init__(self, label: str, net, size=2):
            self.label, self.net, self.size = label, net, size


    class Own(Typed):
        def __init__(self, label: str):
            self.label = label


    @dataclass
    class Unfinished(Task):
        width: int = 1


    @dataclass(frozen=True)
    class Mine(Strategy):
        parts: int = 2

        def start(self, work):
            raise NotImplementedError


    def task_of(width: int) -> Typed:
        return Typed("made", width)


    def number_of(command) -> int:
        raise AssertionError("was called")


    def nothing_of(command) -> None:
        raise AssertionError("was called")


    def any_net() -> Any: return nn.Linear(1, 1)
    def open_net(): return nn.Linear(1, 1)
    def some_net() -> int | object: return nn.Linear(1, 1)
    wrapped_net = functools.partial(nn.Linear, 1, 1)


    class Rated:
        def __init__(self, rate=0.5, mode: str | int = 1, size=2): pass


    def boom():
        raise RuntimeError("operator torchvision::nms does not exist")
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file: write("a.yaml", "seed: 3")."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def mine(write: Write, tmp_path: Path) -> Path:
    """A folder on the import path with a module ``mine``."""
    write("mine.py", MODULE)
    sys.path.insert(0, str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _imports_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
