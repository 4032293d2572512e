"""What a person is told of each event: values in, one line of text out."""

from __future__ import annotations

from collections.abc import Mapping

from launch.events import CheckpointSaved, EvaluationDone, Progress, RunEnded, RunStarted


def started(event: RunStarted) -> str:
    """Return who trains what, how, how long, and where it is kept."""
    place = ", ".join(filter(None, (event.device, event.backend)))
    parts = [
        f"{event.strategy} on {_count(event.world_size, 'process', 'processes')} ({place})",
        _batch(event),
        event.precision,
        _count(event.parameters, "parameter"),
        _length(event),
    ]
    line = f"{event.folder.name}: {', '.join(parts)} -> {event.folder}"
    return f"{line}, going on after step {event.start_step:,}" if event.start_step else line


def progress(event: Progress, steps: int | None, left_s: float | None) -> str:
    """Return a line that stands alone, for where there is no bar."""
    total = f"/{steps}" if steps else ""
    parts = [f"step {event.step}{total}", f"epoch {event.epoch + 1}", *pace(event, left_s)]
    parts.insert(3, f"lr {event.lr:.3g}")
    return "  ".join(parts)


def pace(event: Progress, left_s: float | None) -> list[str]:
    """Return loss, speed, skipped steps and time left, as far as they are known."""
    speed = event.samples_per_s
    parts = [f"loss {number(event.loss)}", "warming up" if speed is None else _speed(speed)]
    if event.skipped:
        parts.append(f"{event.skipped} skipped")
    if left_s is not None:
        parts.append(f"{duration(left_s)} left")
    return parts


def evaluation(event: EvaluationDone) -> str:
    """Return all metrics of one split, or that there was nothing to judge."""
    if not event.samples:
        return (
            f"note: epoch {event.epoch}: the split {event.split!r} gave no sample, so there was "
            "nothing to evaluate; its stream is empty, or was used up before"
        )
    values = metrics({f"{event.split}/{name}": value for name, value in event.metrics.items()})
    return f"epoch {event.epoch}: {values} ({_count(event.samples, 'sample')})"


def checkpoint(event: CheckpointSaved) -> str:
    """Return where a checkpoint lies."""
    return f"checkpoint: step {event.step:,} -> {event.path} ({event.seconds:.1f} s)"


def ended(event: RunEnded) -> str:
    """Return how the run ended and why, on one line; the failing rank itself says why it did."""
    where = f" on rank {event.rank}" if event.rank is not None else ""
    epochs, steps = _count(event.epoch, "epoch"), _count(event.step, "step")
    line = f"{event.state}{where} after {steps}, {epochs}, {duration(event.seconds)}"
    reason = " ".join(event.reason.split())
    line = f"{line} ({reason})" if reason and event.state != "failed" else line
    return f"{line}; the same command goes on from here" if event.state == "stopped" else line


def metrics(values: Mapping[str, float]) -> str:
    """Return names and values, as TensorBoard names them."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def phases(seconds: Mapping[str, float]) -> str:
    """Return the share of each phase in the mean step of ``seconds`` (phase -> s, and "step")."""
    step = seconds["step"]
    shares = [
        f"{name} {100 * value / step:.0f} %" for name, value in seconds.items() if name != "step"
    ]
    took = f"{step:.3g} s" if step >= 1 else f"{1000 * step:.3g} ms"
    return f"a step took {took}: {', '.join(shares)} (warm-up steps are left out)"


def number(value: float) -> str:
    """Return four decimals, or a power of ten where those would hide the value."""
    if value == 0 or 1e-3 <= abs(value) < 1e6 or value != value:
        return f"{value:.4f}"
    return f"{value:.3e}"


def duration(seconds: float) -> str:
    """Return m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _speed(samples_per_s: float) -> str:
    digits = 0 if samples_per_s >= 10 else 1
    return f"{samples_per_s:,.{digits}f} samples/s"


def _batch(event: RunStarted) -> str:
    """Return the global batch and, where the processes divide it, how."""
    total, (least, most) = event.global_batch_size, event.batch_sizes
    text = f"global batch {total}"
    if least != most:
        text += f" = {event.world_size} x ({least} to {most})"
    elif most and most < total:
        text += f" = {total // most} x {most}"
    return text + (f" in {event.accumulate} rounds" if event.accumulate > 1 else "")


def _length(event: RunStarted) -> str:
    train = event.config.get("train") or {}
    minutes = train.get("max_minutes")
    epochs = _count(event.epochs, "epoch") if event.epochs else ""
    steps = _count(event.steps, "step") if event.steps else ""
    length = f"{steps} in {epochs}" if steps and epochs else steps or epochs
    if steps and event.steps == train.get("max_steps"):  # before or at the last epoch's end
        length = f"at most {steps} (train.max_steps)"
    limit = f"at most {minutes:g} min" if minutes else ""
    return " or ".join(filter(None, (length, limit))) or "no limit of steps"
