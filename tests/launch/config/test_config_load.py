"""Files and overrides as one typed configuration."""

import re
import sys
from dataclasses import replace

import pytest

from launch.config import Config, ConfigError, EarlyStop, load, to_dict, to_yaml
from parallel import UsageError

ALL_KEYS = to_dict(Config())


def test_without_words_it_is_the_built_in_run():
    assert load() == Config()


def test_files_are_laid_over_each_other_and_overrides_last(write):
    first = write("first.yaml", "seed: 1\ntrain: {epochs: 2, accumulate: 2}")
    second = write("second.yaml", "seed: 2\ntrain: {epochs: 3}")
    config = load([first, second], ["seed=3"])
    assert (config.seed, config.train.epochs, config.train.accumulate) == (3, 3, 2)


def test_the_name_is_the_first_files_stem(write):
    first, second = write("first.yaml", "seed: 1"), write("second.yaml", "seed: 2")
    assert load([first, second]).name == "first"
    assert load([first], ["name=other"]).name == "other"
    assert load([write("third.yaml", "name: given")]).name == "given"


@pytest.mark.parametrize("text", ["1e-4", "5e-4", "1E-3", "1e5", "-2.5E+3", ".5", "3."])
def test_G1_exponents_are_numbers_from_everywhere(write, text):
    typed = load([], [f"optimizer.lr={text}"])
    from_file = load([write("digits.yaml", f"optimizer: {{lr: {text}}}")])
    saved = load([write("saved.yaml", to_yaml(typed))])
    for config in (typed, from_file, saved):
        assert config.optimizer["lr"] == float(text)
        assert type(config.optimizer["lr"]) is float


@pytest.mark.parametrize(
    ("override", "betas"),
    [
        ("optimizer.betas=[0.5,0.6]", [0.5, 0.6]),
        ("optimizer.betas[1]=0.5", [0.9, 0.5]),
        ("optimizer.betas.1=0.5", [0.9, 0.5]),
    ],
)
def test_G3_one_item_of_a_list_can_be_set(write, override, betas):
    file = write("a.yaml", "optimizer: {betas: [0.9, 0.999]}")
    assert load([file], [override]).optimizer["betas"] == betas


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.betas[2]=1", r"optimizer.betas\[2\]: optimizer.betas has 2 items, \[0\] to"),
        ("optimizer.betas.x=1", r"optimizer.betas is a list; write optimizer.betas\[0\]=VALUE"),
        ("optimizer.eps[0]=1", "optimizer.eps is not a list so far; write all of it"),
        ("optimizer[0]=1", "optimizer is no list; write optimizer.KEY=VALUE"),
    ],
)
def test_G3_an_index_that_is_not_there_is_refused(write, override, said):
    file = write("a.yaml", "optimizer: {betas: [0.9, 0.999]}")
    with pytest.raises(ConfigError, match=said):
        load([file], [override])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optim.lrr=1", "there is no key optim; did you mean 'optimizer'"),
        ("train.epoch=3", "there is no key train.epoch; did you mean 'train.epochs'"),
        ("early_stop.patient=3", "did you mean 'early_stop.patience'"),
        ("epochs=3", "did you mean 'train.epochs'"),
        ("batch_size=3", "did you mean 'train.global_batch_size'"),
        ("lr=0.1", "there is no key lr; did you mean 'optimizer.lr'"),
        ("workrs=1", "did you mean 'data.workers'"),
        ("zzz=1", r"there is no key zzz \(known here: name, runs, seed, task"),
    ],
)
def test_G4_a_misspelt_key_is_refused_with_the_nearest(override, said):
    with pytest.raises(ConfigError, match=said):
        load([], [override])


def test_G4_all_misspelt_keys_of_a_file_are_named_at_once(write):
    file = write("a.yaml", "seeed: 1\ntrain: {epoch: 3}\nlog: {evry_steps: 1}")
    with pytest.raises(ConfigError, match=r"3 mistakes(.|\n)*seeed(.|\n)*epoch(.|\n)*evry_steps"):
        load([file])


def test_dotted_keys_in_a_file_are_explained(write):
    with pytest.raises(ConfigError, match=r"train.epochs: keys in a file are nested"):
        load([write("a.yaml", "train.epochs: 3")])


def test_G5_all_missing_values_are_listed_at_once(write):
    file = write("a.yaml", "runs: ???\ntask:\n  path: ???\n  parts:\n  - 1\n  - ???\nseed: 1")
    said = r"no value yet for runs, task.path, task.parts\[1\]; type runs=VALUE"
    with pytest.raises(ConfigError, match=said):
        load([file])
    assert load([file], ["runs=r", "task.path=p", "task.parts[1]=2"]).task["parts"] == [1, 2]


def test_G6_null_is_none(write):
    config = load([], ["train.max_steps=null", "scheduler=null", "optimizer.fused=null"])
    assert config.train.max_steps is None
    assert config.optimizer["fused"] is None
    assert load([write("a.yaml", "train: {clip_norm: null}")]).train.clip_norm is None


@pytest.mark.parametrize("word", ["None", "none", "NONE"])
@pytest.mark.parametrize("key", ["train.max_steps", "scheduler", "optimizer.fused", "seed"])
def test_G6_the_word_none_is_refused_where_null_is_meant(key, word):
    with pytest.raises(ConfigError, match=f"{key}={word}: type null where nothing is meant"):
        load([], [f"{key}={word}"])


def test_G6_the_word_none_is_text_where_text_is_wanted(write):
    config = load([], ["name=None", "log.progress=none", """optimizer.mode='"none"'"""])
    assert (config.name, config.log.progress) == ("None", "none")
    assert load([write("a.yaml", "optimizer: {mode: 'None'}")]).optimizer["mode"] == "None"


def test_G6_text_cannot_be_null():
    with pytest.raises(ConfigError, match="name: wanted text, met null"):
        load([], ["name=null"])


def test_G7_values_keep_their_signs():
    config = load([], ["runs=/x:y=z", "task.note=a=b"])
    assert (config.runs, config.task["note"]) == ("/x:y=z", "a=b")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "train.global_batch_size=8.5",
            "whole number of at least 1, met 8.5; the default is .*=64",
        ),
        ("train.epochs=-1", "train.epochs: wanted a whole number of at least 1 or null, met -1"),
        ("data.workers=two", "data.workers: wanted a whole number of at least 0, met 'two'"),
        ("train.compile=maybe", "train.compile: wanted true or false, met 'maybe'"),
        ("train.compile=2", "train.compile: wanted true or false, met 2"),
        ("train.clip_norm=0", "train.clip_norm: wanted a number above 0 or null, met 0"),
        ("train.clip_norm=.nan", "wanted a number above 0 or null, met nan"),
        ("train.max_steps=", "train.max_steps: wanted .* or null, met ''"),
        ("train.max_steps=true", "train.max_steps: wanted a whole number .*, met true"),
        ("train.precision=float23", "wanted float32, .*, met 'float23'; did you mean 'float32'"),
        ("early_stop.mode=up", "early_stop.mode: wanted min or max, met 'up'"),
        ("train=5", "train: wanted keys and values, met 5; type train.epochs=VALUE"),
        ("task=mine.Task", "task: wanted keys and values, met 'mine.Task'; .* task._target_="),
        ("strategy=ddp", "strategy: wanted keys and values, met 'ddp'; .* strategy.name=auto"),
        ("train.epochs.x=3", "train.epochs: wanted a whole number .*, met {'x': 3}"),
        ("optimizer.x=@home", "optimizer.x=@home: this is not YAML: .*; for plain text put it in"),
        ("seed", "wanted key=value, such as train.epochs=5; met 'seed'"),
    ],
)
def test_G8_a_wrong_value_is_named_with_its_key_and_what_was_wanted(override, said):
    with pytest.raises(ConfigError, match=said) as caught:
        load([], [override])
    assert "\n" not in str(caught.value)


def test_G9_an_older_saved_configuration_gets_defaults_for_new_keys(write):
    lines = to_yaml(load([], ["seed=5", "data.workers=2"])).splitlines()
    old = [line for line in lines if "prefetch" not in line and "max_skipped" not in line]
    assert len(old) == len(lines) - 2
    config = load([write("old.yaml", "\n".join(old))])
    assert config == load([], ["seed=5", "data.workers=2"])


@pytest.mark.parametrize("text", ["1e5", "007", "on", "12:30:00", "yes", "a: b", "[x", "1_0", "~x"])
def test_text_is_kept_as_typed_and_saved_so(write, text):
    config = load([], [f"name={text}"])
    assert config.name == text
    assert load([write("saved.yaml", to_yaml(config))]) == config


@pytest.mark.parametrize("text", ["1e5", "007", "on", "12:30:00", "yes", "2026-01-31", "0x1f"])
def test_text_is_kept_from_a_file_with_or_without_quotes(write, text):
    assert load([write("a.yaml", f"name: {text}")]).name == text
    assert load([write("b.yaml", f"name: '{text}'")]).name == text


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "a\nb", " "])
def test_a_name_must_be_a_folder(name):
    with pytest.raises(ConfigError, match="name: wanted the name of one folder inside runs, met"):
        load([], [f"name={name}"])


@pytest.mark.parametrize("word", ["true", "on", "yes", "1", "True"])
def test_a_switch_is_turned_on_by_any_usual_word(word):
    assert load([], [f"train.compile={word}"]).train.compile is True


def test_whole_numbers_become_floats_where_floats_are_wanted():
    assert type(load([], ["train.max_minutes=2"]).train.max_minutes) is float


def test_nothing_that_ends_the_run_is_refused():
    with pytest.raises(ConfigError, match=r"nothing ends this run.*train.epochs=20"):
        load([], ["train.epochs=null"])
    assert load([], ["train.epochs=null", "train.max_minutes=1"]).train.epochs is None


def test_an_optional_section_can_be_opened_and_closed(write):
    closed = write("a.yaml", "early_stop: null")
    assert load([closed], ["early_stop.patience=5"]).early_stop == EarlyStop(patience=5)
    opened = write("b.yaml", "early_stop: {patience: 5}")
    assert load([opened], ["early_stop=null"]).early_stop is None


def test_other_keys_and_the_environment_can_be_referred_to(monkeypatch):
    monkeypatch.setenv("FOLDER", "/data")
    words = ["seed=4", "name=run-${seed}", "train.epochs=${seed}", "task.path=${oc.env:FOLDER}/x"]
    config = load([], words)
    assert (config.name, config.train.epochs) == ("run-4", 4)
    assert config.task["path"] == "/data/x"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("runs=${sed}", r"runs=\${sed}: Interpolation key 'sed' not found; did you mean 'seed'"),
        ("runs=${oc.env:NOT_THERE}", "Environment variable 'NOT_THERE' not found; set it, or give"),
        ("runs=${foo:1}", r"Unsupported interpolation type foo; known are .*\${run:steps}"),
        ("runs=${seed", r"close it with }, or write \\\${ for these two characters"),
        ("runs=${runs}", "Recursive interpolation"),
    ],
)
def test_a_reference_to_nothing_is_refused(override, said):
    with pytest.raises(ConfigError, match=said):
        load([], [override])


def test_a_dollar_sign_can_be_meant_and_saved(write):
    config = load([], [r"runs=a\${b}"])
    assert config.runs == "a${b}"
    assert load([write("digits.yaml", to_yaml(config))]) == config


def test_a_missing_file_is_named_with_the_nearest(write, tmp_path):
    write("digits.yaml", "")
    with pytest.raises(ConfigError, match=r"no file .*digit\.yaml; did you mean .*digits\.yaml"):
        load([tmp_path / "digit.yaml"])
    with pytest.raises(ConfigError, match=re.escape(f"there is no file {tmp_path / 'no/a.yaml'}")):
        load([tmp_path / "no" / "a.yaml"])


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read as a text file"):
        load([tmp_path])


def test_modules_beside_the_first_file_are_found_first(write, tmp_path):
    one, two = write("one/a.yaml", "seed: 1"), write("two/b.yaml", "seed: 2")
    for _ in range(2):
        load([one, two, one])
    assert sys.path[:2] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert sys.path.count(str(tmp_path / "one")) == 1


def test_what_is_saved_is_all_of_it_and_loads_to_the_same(write):
    words = [
        "name=007",
        "optimizer={_target_: torch.optim.SGD, lr: 1e-5, note: '1e5', on: [null, 'None', true]}",
        "scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: '${run:steps}'}",
        "early_stop.patience=2",
        "train.max_minutes=1e20",
        'task.lines="a\\nb: c"',
    ]
    config = load([], words)
    assert config.optimizer["on"] == [None, "None", True]
    assert load([write("saved.yaml", to_yaml(config))]) == config
    assert list(to_dict(config)) == list(ALL_KEYS)


def test_a_configuration_made_in_code_can_be_saved(write):
    config = replace(Config(), optimizer={"_target_": "a.B", "betas": (0.5, 0.9), "name": "1e5"})
    read = load([write("digits.yaml", to_yaml(config))])
    assert read.optimizer == {"_target_": "a.B", "betas": [0.5, 0.9], "name": "1e5"}


def test_loads_do_not_share_containers():
    load().optimizer["lr"] = 5
    assert load().optimizer["lr"] == 2e-3


def test_a_config_error_is_a_usage_error():
    assert issubclass(ConfigError, UsageError)
