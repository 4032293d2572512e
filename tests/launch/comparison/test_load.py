import subprocess
import sys
from time import sleep

import pytest

from launch.comparison.load import Watch, descendants

BUSY = "import time\nend = time.time() + 5\nwhile time.time() < end: pass"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts processor time")


@pytest.fixture
def busy():
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    yield process.pid
    process.kill()
    process.wait()


def test_what_others_do_is_load_and_what_is_ours_is_none(busy):
    everything, others = Watch([]), Watch([busy])
    sleep(1)
    assert everything.load() > 0.5 + others.load()


def test_those_that_a_process_started_are_found():
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        found = []
        for _ in range(100):
            found = found or descendants(process.pid)
            sleep(0.02)
        process.kill()
        subprocess.run(["kill", *map(str, found)], check=True)
    assert len(found) == 1
