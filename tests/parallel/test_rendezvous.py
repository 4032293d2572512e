"""How processes meet that were started by hand: with variables, without a launcher."""

import os
import socket
import time

import pytest

import parallel.rendezvous
from parallel import WorldError, join

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


def meeting_by_rank(rank, port):
    os.environ.update(by_hand(rank, port))
    return meeting(rank, wait_s=20.0)


def test_processes_started_by_hand_meet(children, port):
    ended = children(2, meeting_by_rank, port)
    assert all("met as by hand, ranks [0, 1]" in text for _, text in ended)


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
