"""How processes meet that were started by hand: with variables, without a launcher."""

import os
import socket
import time

import pytest
import torch.distributed as dist

import parallel.rendezvous
from parallel import Place, WorldError, join

WAIT_S = 1.0


@pytest.fixture
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def by_hand(rank, port, size=2):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def meeting(_, wait_s=WAIT_S):
    parallel.rendezvous.ROLL_CALL_S = wait_s
    try:
        with join(timeout_s=30) as world:
            return f"met as {world.launcher}, ranks {world.gather_objects(world.rank)}"
    except WorldError as error:
        return f"refused: {error}"


def test_absent_ranks_are_named(children, port):
    [(_, text)] = children(1, meeting, **by_hand(0, port, size=4))
    assert "WORLD_SIZE=4 promises 4 processes, but after 1 s rank 1, 2, 3 had not come" in text
    assert "unset RANK WORLD_SIZE LOCAL_RANK" in text


def test_rank_1_without_rank_0_says_where_it_looked(children, port):
    [(_, text)] = children(1, meeting, **by_hand(1, port))
    assert f"rank 1 of 2 found nobody at 127.0.0.1:{port} within 1 s: is rank 0 started" in text


def waiting(_, timeout_s, silent_s):
    parallel.rendezvous.SILENT_S = silent_s
    start = time.monotonic()
    try:
        with join(timeout_s=timeout_s):
            return "met"
    except WorldError as error:
        return f"refused after {time.monotonic() - start:.0f} s: {error}"


def test_a_wait_for_others_is_spoken_of_once_and_ends_by_the_timeout(children, port):
    [(_, text)] = children(1, waiting, 3.0, 1.0, **by_hand(0, port, size=3))
    notice, refused = text.split("refused after 3 s: ")
    assert notice == (
        f"rank 0 is waiting for rank 1, 2 of 3 at 127.0.0.1:{port}, for up to 3 s: start what is "
        "absent, or stop and `unset RANK WORLD_SIZE LOCAL_RANK` to train in one process\n"
    )
    assert "after 3 s rank 1, 2 had not come" in refused


def test_a_wait_for_rank_0_is_spoken_of_while_it_lasts_and_torch_adds_nothing(children, port):
    [(_, text)] = children(1, waiting, 3.0, 1.0, **by_hand(2, port, size=3))
    notice, refused = text.split("refused after 3 s: ")
    assert notice.startswith(
        f"rank 2 is waiting for rank 0 of 3 at 127.0.0.1:{port}, for up to 3 s"
    )
    assert notice.count("\n") == 1
    assert "rank 2 of 3 found nobody" in refused
    assert "within 3 s: is rank 0 started" in refused


def leaving_first(rank, port):
    os.environ.update(by_hand(rank, port, size=3))
    return waiting(rank, 6.0 if rank else 2.0, 9.0)


def test_a_rank_that_waits_is_told_that_rank_0_gave_up(children, port):
    first, second = (text for _, text in children(2, leaving_first, port))
    assert "rank 2 had not come" in first
    assert f"rank 0 at 127.0.0.1:{port} left before all 3 processes had come" in second


def meeting_by_rank(rank, port):
    os.environ.update(by_hand(rank, port))
    return meeting(rank, wait_s=20.0)


def test_processes_started_by_hand_meet(children, port):
    ended = children(2, meeting_by_rank, port)
    assert all("met as by hand, ranks [0, 1]" in text for _, text in ended)
    assert not any("waiting" in text for _, text in ended)


def test_A1_a_port_in_use_is_named_within_seconds(children):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        start = time.monotonic()
        [(_, text)] = children(1, meeting, 60.0, **by_hand(0, port))
    assert time.monotonic() - start < 15
    assert f"rank 0 cannot listen on 127.0.0.1:{port}" in text
    assert "in use" in text
    assert "choose a free port by MASTER_PORT" in text


def meeting_over(rank, store):
    try:
        with join(rank=rank, size=2, store=store, timeout_s=10) as world:
            return f"met {world.gather_objects(rank)}"
    except WorldError as error:
        return f"refused: {error}"


def test_A21_an_interface_that_is_none_is_named_with_its_variable(children, tmp_path):
    store = str(tmp_path / "store")
    ended = children(2, meeting_over, store, GLOO_SOCKET_IFNAME="wrong0")
    for _, text in ended:
        assert "refused: GLOO_SOCKET_IFNAME=wrong0 is no interface that gloo can use here" in text
        assert "this machine has lo" in text


def test_A21_the_loopback_will_do_on_one_machine(children, tmp_path):
    ended = children(2, meeting_over, str(tmp_path / "store"), GLOO_SOCKET_IFNAME="lo")
    assert all("met [0, 1]" in text for _, text in ended)


def test_A11_whom_torchrun_left_while_it_started_ends_within_seconds(children, port):
    environ = {
        **by_hand(0, port),
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "a",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    started = time.monotonic()
    [(_, text)] = children(1, meeting, **environ)
    assert f"refused: torchrun is gone: its store at 127.0.0.1:{port}" in text
    assert time.monotonic() - started < 15


def meeting_at(rank, port, attempt):
    """Meet, leave word in what was met, and return all words that lay there at any time."""
    place = Place(rank, 2, rank, 2, "torchrun")
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    met = parallel.rendezvous._part_of_this_attempt(store, place, 20.0)
    keys = ["rank 0", "rank 1"]
    before = [met.get(key).decode() for key in keys if met.check([key])]
    met.set(keys[rank], attempt)
    return " ".join(sorted({*before, *(met.get(key).decode() for key in keys)}))


def test_A12_a_restarted_attempt_sees_nothing_of_the_one_before(children):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    for attempt in ("one", "two", "three"):
        met = children(2, meeting_at, str(store.port), attempt)
        assert [text for _, text in met] == [attempt, attempt]
