from dataclasses import replace

import pytest

from parallel import Place, WorldError
from parallel.place import find_place

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
STEP = {  # `srun -n 5` in a job of 8 tasks on 3 nodes
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "n[03-05]",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
BY_HAND = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29501",
}
SCRIPT = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}


def without(environ, *names):
    return {name: value for name, value in environ.items() if name not in names}


def test_torchrun_tells_all_four_numbers_and_keeps_the_store_itself():
    assert find_place(TORCHRUN) == Place(5, 8, 1, 4, "torchrun", None, None)


def test_where_torchrun_keeps_the_store_its_address_is_known():
    store = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "n1", "MASTER_PORT": "29400"}
    place = find_place(TORCHRUN | store)
    assert (place.address, place.port) == ("n1", 29400)


def test_A3_without_variables_a_process_is_alone():
    assert find_place({}) == find_place({"RANK": "", "WORLD_SIZE": ""}) == Place()


def test_torchrun_under_srun_takes_torchruns_variables():
    assert find_place(STEP | TORCHRUN) == replace(find_place(TORCHRUN), job="77")


def test_F1_variables_of_a_job_do_not_double_torchruns_world():
    job = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0"}
    assert find_place(job | TORCHRUN) == find_place(TORCHRUN)


def test_F2_a_step_of_several_tasks_is_one_world():
    place = find_place(STEP)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (4, 5, 0, 1)
    assert (place.launcher, place.address) == ("srun", "n03")


def test_a_step_comes_before_variables_set_by_hand():
    assert find_place(STEP | {"RANK": "0", "WORLD_SIZE": "1"}).launcher == "srun"


@pytest.mark.parametrize(
    ("rank", "node", "local_rank"), [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1), (4, 1, 1)]
)
def test_ranks_dealt_out_cyclically_keep_their_local_numbers(rank, node, local_rank):
    numbers = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local_rank}
    place = find_place(STEP | {name: str(number) for name, number in numbers.items()})
    assert (place.rank, place.local_rank) == (rank, local_rank)
    assert place.local_size == [2, 2, 1][node]


def test_F2_the_batch_script_itself_is_alone():
    assert find_place(SCRIPT) == Place(job="77")


def test_a_step_of_one_task_is_alone():
    one = SCRIPT | {"SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "1"}
    assert find_place(one) == Place(job="77")


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun's default, of all jobs
        ({"TORCHELASTIC_RUN_ID": "mine"}, "mine"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"}, "77"),
        ({"TORCHELASTIC_RUN_ID": "mine", "SLURM_JOB_ID": "77"}, "mine"),
    ],
)
def test_a_job_has_the_name_that_its_launcher_keeps_over_restarts(environ, job):
    base = TORCHRUN if environ else {}
    assert find_place(base | environ).job == job


def test_torchruns_scratch_folder_is_that_of_all_its_attempts():
    file = {"TORCHELASTIC_ERROR_FILE": "/tmp/x/none_abc/attempt_0/1/error.json"}
    assert find_place(TORCHRUN | file).scratch == "/tmp/x/none_abc"
    assert find_place({}).scratch is None


def test_only_our_own_agent_hands_exit_codes_on():
    assert find_place(TORCHRUN | {"LAUNCH_AGENT": "1"}).agent
    assert not find_place(TORCHRUN).agent


def test_a_step_on_one_node_needs_no_names_of_hosts():
    one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"}
    assert find_place(STEP | one).address == "127.0.0.1"
    assert find_place(STEP | one).local_size == 5


def test_A1_jobs_and_steps_have_ports_of_their_own_below_the_ephemeral():
    ports = {
        find_place(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).port
        for job in (77, 78, 79)
        for step in range(4)
    }
    assert len(ports) == 12
    assert all(20000 <= port < 32000 for port in ports)


def test_a_step_meets_where_the_user_says():
    place = find_place(STEP | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "4711"})
    assert (place.address, place.port) == ("10.0.0.9", 4711)


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[03-04,7],login", "n03"),
        ("n[7,9]", "n7"),
        ("login,n[1-2]", "login"),
        ("gpu[001-016].cluster", "gpu001.cluster"),
        ("a[1-2]-ib,b3", "a1-ib"),
        ("rack[1-2]n[3-4]", "rack1n3"),
    ],
)
def test_the_first_host_of_a_list_as_slurm_writes_it(nodelist, first):
    assert find_place(STEP | {"SLURM_STEP_NODELIST": nodelist}).address == first


def test_all_five_variables_by_hand():
    assert find_place(BY_HAND) == Place(1, 2, 1, 2, "by hand", "localhost", 29501)


def test_by_hand_on_several_nodes_the_local_size_is_what_is_said_or_seen():
    far = BY_HAND | {"MASTER_ADDR": "n1", "WORLD_SIZE": "8", "RANK": "5"}
    assert find_place(far).local_size == 2
    assert find_place(far | {"LOCAL_WORLD_SIZE": "4"}).local_size == 4


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "4"}, r"WORLD_SIZE=4 is set, but not RANK, LOCAL_RANK, MASTER_ADDR"),
        ({"RANK": "0"}, "RANK=0 is set.*`unset RANK`"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 is set"),
        ({"RANK": "3", "WORLD_SIZE": "1"}, "RANK=3, WORLD_SIZE=1 is set"),
        (without(BY_HAND, "MASTER_PORT"), "but not MASTER_PORT: left over from another job"),
        (without(BY_HAND, "LOCAL_RANK"), "but not LOCAL_RANK.*torchrun --nproc_per_node"),
    ],
)
def test_a_part_of_the_variables_is_refused_by_name(environ, words):
    with pytest.raises(WorldError, match=words):
        find_place(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {"MASTER_ADDR": "n1"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        {"WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
    ],
)
def test_left_overs_that_promise_no_other_process_are_borne(environ):
    assert find_place(environ) == Place()


@pytest.mark.parametrize(
    "changed", [{"RANK": "2"}, {"LOCAL_RANK": "2"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "0"}]
)
def test_values_that_contradict_each_other_are_refused(changed):
    with pytest.raises(WorldError, match=r"cannot be: the variables that 'by hand' set contradict"):
        find_place(BY_HAND | changed)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (BY_HAND | {"RANK": "one"}, "RANK is 'one' where a number is wanted"),
        (BY_HAND | {"MASTER_PORT": "-1"}, "MASTER_PORT is '-1'"),
        (TORCHRUN | {"WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0'"),
        (without(TORCHRUN, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE is not set"),
        (STEP | {"SLURM_PROCID": ""}, "SLURM_PROCID is ''"),
    ],
)
def test_what_is_no_number_is_named(environ, words):
    with pytest.raises(WorldError, match=words):
        find_place(environ)
