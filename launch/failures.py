"""What went wrong, in the words a person needs: who failed first, where, what to do about it."""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from sysconfig import get_paths

import torch

from parallel import DisagreementError, UsageError

ADVICE = (
    (
        r"more than 1 value per channel",
        "BatchNorm cannot normalise a part of one sample: set data.drop_last=true, or choose a "
        "train.global_batch_size (and train.accumulate) that leaves each process two or more "
        "samples of an epoch's last batch",
    ),
    (
        r"out of memory|can't allocate memory",
        "lower train.global_batch_size, raise train.accumulate, or set train.precision=bfloat16",
    ),
    (
        r"bus error|shared memory|SIGBUS",
        "a loader process ran out of shared memory: enlarge /dev/shm (docker: --shm-size), or set "
        "data.workers=0",
    ),
    (r"Too many open files", "raise the limit by `ulimit -n 65536`, or lower data.workers"),
    (r"torchvision::nms", "the installed torchvision does not match this torch: reinstall both"),
    (
        r"[Pp]ickl",
        "loader processes that are spawned need datasets that can be pickled: define them at the "
        "top of a module, without lambdas",
    ),
    (
        r"Timed out waiting|timed out",
        "another rank did not come within launch.timeout_s: see the other files in ranks/",
    ),
)
MOST = 10_000  # characters of one text: a tensor or a page of HTML may be in it


class TrainingError(Exception):
    """Training cannot go on, and its message says why and what to do; raised on all ranks alike."""


@dataclass(frozen=True)
class Failure:
    """One rank's failure; ``asdict`` of it travels between the ranks."""

    rank: int
    kind: str  # the exception's class
    message: str
    at: str  # "file:line, in function"; empty where nobody can know
    advice: str = ""
    step: int = 0
    is_usage: bool = False  # a mistake in what was asked for: exit code 2
    is_plain: bool = False  # the message says it all: no traceback

    @property
    def reason(self) -> str:
        """Return one line: kind and message."""
        line = self.message.strip().partition("\n")[0]
        return f"{self.kind}: {line}" if line else self.kind

    def text(self, world_size: int) -> str:
        """Return the last words on the screen."""
        if self.is_usage:
            return self.message
        who = f"rank {self.rank} of {world_size}" if world_size > 1 else "the run"
        if self.is_plain:
            return f"the run failed after step {self.step}: {self.message}"
        lines = [f"{who} failed after step {self.step}: {self.kind}: {self.message.strip()}"]
        lines += [f"  at {self.at}"] if self.at else []
        lines += [f"  {self.advice}"] if self.advice else []
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return what the other ranks read."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Failure:
        """Return what another rank wrote."""
        return Failure(**json.loads(text))


def describe(error: BaseException, rank: int, step: int) -> Failure:
    """Return ``error`` as a failure of this rank; a loader process's error as its own."""
    said = words_of(error)
    kind, message, at = type(error).__name__, said, location(error)
    worker = re.match(r"Caught (\w+) in (DataLoader worker process \d+)\.", message)
    if worker:
        tail = message.strip().splitlines()[-1]
        kind, message = worker[1], f"{tail.partition(': ')[2] or tail} (in {worker[2]})"
        at = innermost(re.findall(r'File "(.+)", line (\d+), in (\S+)', said)) or at
    advice = next((text for pattern, text in ADVICE if re.search(pattern, said)), "")
    if isinstance(error, torch.OutOfMemoryError) and not advice:
        advice = ADVICE[1][1]
    if isinstance(error, SystemExit):
        code = legible(repr(error.code))
        message = f"the task called sys.exit({code}), which ends the run on all ranks"
    usage = isinstance(error, UsageError)
    plain = usage or isinstance(error, TrainingError | DisagreementError)
    return Failure(rank, kind, message, legible(at), advice, step, usage, plain)


def words_of(error: BaseException) -> str:
    """Return what an exception says, such that every file and terminal takes it."""
    try:
        return legible(str(error))
    except Exception as met:  # whatever a class of the user's makes of __str__
        return f"it says nothing of itself: its __str__ raised {type(met).__name__}"


def trace_of(error: BaseException) -> str:
    """Return the traceback as Python prints it, each of its parts legible."""
    return "".join(legible(part) for part in traceback.format_exception(error))


def legible(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it, and its first characters only where it is endless."""
    if len(text) > MOST:
        text = f"{text[:MOST]} ... (cut: {len(text):,} characters)\n"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def location(error: BaseException) -> str:
    """Return "file:line, in function" of the user's own innermost frame, else of any."""
    frames = traceback.extract_tb(error.__traceback__)
    return innermost([(f.filename, str(f.lineno), f.name) for f in frames]) or "an unknown place"


def innermost(frames: list[tuple[str, str, str]]) -> str:
    """Return the same of (file, line, function) triples; nothing without any."""
    installed = tuple({get_paths()[name] for name in ("purelib", "platlib", "stdlib")})
    ours = str(Path(__file__).parents[1])
    packages = (str(Path(ours, "launch")), str(Path(ours, "parallel")))
    theirs = [f for f in frames if not f[0].startswith((*installed, *packages, "<"))]
    own = [f for f in frames if f[0].startswith(packages)]
    chosen = theirs or own or frames
    return "{}:{}, in {}".format(*chosen[-1]) if chosen else ""
