import pytest

from launch.comparison.header import Header
from launch.comparison.turns import Foreseen, Found, Row, Turn

GIB = 2**30


@pytest.fixture
def row():
    """``row("ddp", [0.1, 0.2])`` is a row whose rounds took so many seconds a step."""

    def make(
        name, times=(), *, losses=(), warm=None, phases=None, load=0.0,
        devices=2, batch=100, is_scaled=False, **facts,
    ):  # fmt: skip
        strategy = name.partition(" ")[0]
        is_reference = name == "single"
        devices = 1 if is_reference else devices
        words = (f"strategy.name={strategy}",)
        asked = Row(name, words, devices, devices, batch, is_scaled, is_reference)
        found = Found(asked, **facts)
        first = 1
        if warm is not None:
            found.turns.append(Turn(0, 1, 3, warm, 1.0))
            first = 4
        for number, step_s in enumerate(times, 1):
            loss = losses[number - 1] if losses else 1 / number
            time_s = {phase: share * step_s for phase, share in (phases or {}).items()}
            last = first + 9
            found.turns.append(Turn(number, first, last, step_s, loss, time_s, load))
            first = last + 1
        return found

    return make


@pytest.fixture
def seven(row):
    """A table as a machine with two cores would give: a reference, six others, one of them lost."""
    times = [1.00, 1.04, 1.02, 1.06, 1.01, 1.03]

    def near(scale, shift=0):
        return [scale * time for time in times[shift:] + times[:shift]]

    def gib(*sizes):
        return [int(size * GIB) for size in sizes]

    quiet = {"data": 0.01, "communication": 0.04}
    idle = {"data": 0.01, "communication": 0.5}
    return [
        row("single", near(1.2), peak_bytes=gib(2.9), foreseen=Foreseen(1.25, tuple(gib(2.8)))),
        row("ddp", near(0.65), peak_bytes=gib(1.62, 1.6), phases=quiet),
        row("fsdp", near(0.65, 3), peak_bytes=gib(1.58, 1.5), phases=quiet),
        row(
            "model_parallel", near(1.19), peak_bytes=gib(1.1, 1.5), phases=idle,
            foreseen=Foreseen(1.2, tuple(gib(1.1, 1.4)), 0.49),
        ),
        row("pipeline m=4", near(0.8), peak_bytes=gib(0.93, 0.9), phases=quiet),
        row("pipeline m=8", near(0.75), peak_bytes=gib(0.92, 0.9), phases=quiet),
        row("2x2 pipeline", devices=4, problem="out of memory:\n  rank 1 | stopped"),
    ]  # fmt: skip


@pytest.fixture
def header():
    return Header(
        name="autoencoder",
        command="python -m launch.compare configs/autoencoder.yaml",
        machine="2 cores",
        cores=2,
        devices=2,
        batch=100,
        date="2026-01-31T12:00:00+00:00",
        versions={"torch": "2.13.0"},
    )
