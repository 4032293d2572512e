"""What cannot be trained in stages is said before training, in one message, with what to type."""

from __future__ import annotations

import pytest

SLOW = pytest.mark.slow
PIPELINE = ("strategy.name=pipeline", "task._target_=tests.staged.Waves", "name=a")
SPLIT = (
    "strategy.split: wanted auto, or the first layer of each stage but the first by number or "
    "name, such as [7] or [layers.7]; met "
)
LAYERS = "0 (layers.0), 1 (layers.1), 2 (layers.2), 3 (layers.3), 4 (layers.4)"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("strategy.stages=3", "strategy.stages=3 wants at least 3 processes, but 1 was started; "
         "use --nproc_per_node=3"),
        ("strategy.stages=0", "strategy.stages: wanted a whole number of at least 1, met 0"),
        ("strategy.microbatches=0",
         "strategy.microbatches: wanted a whole number of at least 1, met 0"),
        ("strategy.checkpoint_every=-1",
         "strategy.checkpoint_every: wanted a whole number of at least 0, met -1"),
        ("strategy.ahead=-1", "strategy.ahead: wanted a whole number of at least 0, met -1"),
        ("strategy.schedule=x", "strategy.schedule: wanted 1f1b or gpipe, met 'x'"),
        ("strategy.balance=x", "strategy.balance: wanted time or flops or params, met 'x'"),
        ("strategy.memory_limit_gib=inf",
         "strategy.memory_limit_gib: wanted a size above 0, met inf"),
        ("strategy.memory_limit_gib=0",
         "strategy.memory_limit_gib: wanted a size above 0, met 0"),
        ("strategy.split=abc", SPLIT + "'abc'"),
        ("strategy.split=2", SPLIT + "2"),
        ("strategy.split=[1.5]", SPLIT + "[1.5]"),
        ("strategy.split=[null]", SPLIT + "[None]"),
        ("strategy.chunks=2", "there is no key strategy.chunks (known here: stages, split, "
         "balance, memory_limit_gib, checkpoint_every, build, microbatches, schedule, ahead)"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_is_refused_before_anything_starts(train, word, said):
    ended = train(*PIPELINE, word)
    assert ended.codes == [2]
    assert ended.output == said + "\n"


def test_a_task_without_a_loss_of_outputs_is_refused_before_anything_starts(train):
    words = ("strategy.name=pipeline", "strategy.stages=1", "task._target_=tests.tasks.Probe")
    ended = train(*words)
    assert ended.codes == [2]
    assert ended.output.startswith("a model that is cut computes its loss on its last stage")
    assert "define loss_of_outputs(self, outputs, batch) in the task" in ended.output


SHOWN = {
    "strategy.split=[]": "strategy.split=[] makes 1 stage, but strategy.stages=2: name the first "
    "layer of each stage but the first, 1 in all",
    "strategy.split=[1,2]": "strategy.split=[1, 2] makes 3 stages, but strategy.stages=2",
    "strategy.split=[0]": "strategy.split=[0] leaves a stage empty: name layers whose numbers "
    "rise, from 1 to 4; these are 0",
    "strategy.split=[layers.7]": "strategy.split=['layers.7']: the model has no layer 'layers.7' "
    "to cut before; its layers are " + LAYERS,
    "strategy.memory_limit_gib=1e-9": "no cut of 5 layers into 2 stages fits "
    "strategy.memory_limit_gib=1e-09: under the best one a stage holds about ",
    "task._target_=tests.staged.OwnEvaluation": "the task evaluates in a way of its own, by "
    "evaluate(model, batch), and a stage has no whole model; define evaluate_outputs",
}


@pytest.mark.parametrize(
    "word", [*(pytest.param(word, marks=SLOW) for word in [*SHOWN][:3]), *[*SHOWN][3:]]
)
def test_what_the_model_shows_is_refused_on_all_ranks_and_told_once(train, word):
    ended = train(*PIPELINE, word, processes=2)
    assert ended.codes == [2, 2]
    assert ended.output.count(SHOWN[word]) == 1
    assert "Traceback" not in ended.output
    assert "after 0 steps" in ended.output


@SLOW
def test_three_processes_are_no_number_of_pipelines_of_two_stages(train):
    ended = train(*PIPELINE, processes=3)
    assert ended.codes == [2, 2, 2]
    assert "wants a multiple of 2 processes, one for each stage of each replica" in ended.output
    assert "but 3 were started; use --nproc_per_node=2" in ended.output


@pytest.mark.parametrize("form", ["file", pytest.param("command", marks=SLOW)])
def test_a_split_by_name_is_taken_from_the_command_and_from_a_file(train, tmp_path, form):
    words = ["strategy.split=[layers.2]"]
    if form == "file":
        text = 'strategy: {name: pipeline, split: ["layers.2"], balance: params}\n'
        (tmp_path / "mine.yaml").write_text(text)
        words = ["mine.yaml"]
    ended = train(*words, *PIPELINE, "train.max_steps=1", processes=2)
    assert ended.codes == [0, 0], ended.output
    assert "2 stages of 5 layers, cut before 2 (layers.2):" in ended.output


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("Leaks", "pipeline_layers() leaves out or adds something that forward() does"),
        ("Named", "define inputs(self, batch) in Named"),
    ],
)
def test_a_task_whose_parts_do_not_fit_together_is_told_how_to_mend_it(train, task, said):
    words = (f"task._target_=tests.staged.{task}", "strategy.name=pipeline", "train.max_steps=1")
    ended = train(*words, processes=2)
    assert 0 not in ended.codes
    assert said in ended.output
    assert "Traceback" not in ended.output
