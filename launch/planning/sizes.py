"""Sizes and speeds as people write them: 24GiB, 512MiB, 100Gbit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from launch.config import ConfigError

UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
BITS = {f"{prefix}bit": 1000**power / 8 for power, prefix in enumerate(["", "K", "M", "G", "T"])}


def parse_bytes(text: str, name: str) -> int:
    """Return ``text``, such as 24GiB, in bytes. Raises ``ConfigError``; ``name``: of the flag."""
    lower = {unit.lower(): factor for unit, factor in UNITS.items()}
    return math.floor(_parse(text, name, lower, "24GiB, 24GB or 512MiB"))


def parse_speed(text: str, name: str) -> float:
    """Return ``text``, such as 100Gbit or 12GiB, in bytes a second. Raises ``ConfigError``.

    Gb is refused, since it may mean either.
    """
    plain = re.sub(r"(/s|ps)$", "", text.strip())
    return _parse(plain, name, {**UNITS, **BITS}, "100Gbit or 12GiB, which is a second")


def shown_bytes(size: float) -> str:
    """Return ``size`` as a person reads it: 24.0 GiB, 31 MiB."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 10 * 2**20 else f"{size / 2**20:.1f} MiB"


def _parse(text: str, name: str, units: Mapping[str, float], such: str) -> float:
    met = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    unit = met[2] if met else ""
    factor = units.get(unit) or units.get(unit.lower())
    if met is None or factor is None:
        raise ConfigError(
            f"--{name}: wanted a number and its unit, such as {such}, met {text!r} "
            "(units: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
            f"{', Kbit, Mbit, Gbit' if 'Gbit' in units else ''})"
        )
    value = float(met[1]) * factor
    if value < 1:
        raise ConfigError(f"--{name}: wanted more than nothing, such as {such}, met {text!r}")
    return value
