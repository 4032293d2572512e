"""What ranks leave for each other in the store is there once, and costs no collective."""

from __future__ import annotations

import threading

from parallel.notes import Notes


def left_and_taken(world):
    notes = world.notes
    if world.rank:
        notes.leave("part/1", "mine")
    else:
        assert notes.take("part/2", wait_s=0.05) is None
        assert notes.take("part/1", wait_s=10) == "mine"
        assert notes.take("part/1", wait_s=0.05) is None, "it is taken once"
    world.barrier()
    before = world.store.num_keys()
    world.barrier()  # else the other rank may have left the next note by the time it is counted
    for number in range(5):
        if world.rank:
            notes.leave(f"part/{number}", "mine")
        else:
            assert notes.take(f"part/{number}", wait_s=10) == "mine"
        world.barrier()
    assert world.store.num_keys() == before


def test_what_one_rank_left_another_takes_once_and_the_store_does_not_grow(in_ranks):
    in_ranks(2, left_and_taken)


def taken_in_a_thread(world):
    got = []
    if world.rank == 0:
        thread = threading.Thread(target=lambda: got.append(world.notes.take("x", wait_s=20)))
        thread.start()
        world.barrier()  # the thread waits, and the main thread goes on
        thread.join()
        assert got == ["mine"]
    else:
        world.barrier()
        world.notes.leave("x", "mine")


def test_a_thread_may_wait_for_it_while_the_main_thread_meets_the_others(in_ranks):
    in_ranks(2, taken_in_a_thread)


def test_in_a_world_of_one_nothing_is_left_and_nothing_waited_for():
    notes = Notes(None, 0)
    notes.leave("x", "mine")
    assert notes.take("x", wait_s=60) is None
