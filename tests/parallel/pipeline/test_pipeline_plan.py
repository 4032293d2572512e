from itertools import combinations

import pytest

from parallel import UsageError
from parallel.pipeline.plan import GIB, Terms, choose, given
from parallel.pipeline.profile import LayerCost

AUTOENCODER = [0.1, 0.1, 0.2, 0.6, 2.3, 9.7, 38.4, 36.4, 8.9, 2.3, 0.7, 0.2, 0.1, 0]  # % of time


def timed(parts, **more):
    return [
        LayerCost(str(n), part / 300, part / 150, **{name: of[n] for name, of in more.items()})
        for n, part in enumerate(parts)
    ]


def named(count, **more):
    return [LayerCost(f"layers.{n}", 1.0, 2.0, **more) for n in range(count)]


@pytest.mark.parametrize(("microbatches", "speed_up"), [(4, 1.59), (8, 1.75)])
def test_the_autoencoder_is_cut_in_halves(microbatches, speed_up):
    plan = choose(timed(AUTOENCODER), Terms(microbatches=microbatches))
    assert plan.cuts == (7,)
    assert plan.shares == pytest.approx((0.514, 0.486))
    assert plan.forecast.speed_up == pytest.approx(speed_up, abs=0.005)


@pytest.mark.parametrize(("microbatches", "speed_up"), [(4, 1.11), (8, 1.13)])
def test_where_the_tutorial_cuts_it_two_devices_are_hardly_faster_than_one(microbatches, speed_up):
    plan = given(timed(AUTOENCODER), Terms(microbatches=microbatches), [6])
    assert plan.shares == pytest.approx((0.13, 0.87))
    assert plan.forecast.speed_up == pytest.approx(speed_up, abs=0.005)


def test_the_plan_is_said_in_two_lines():
    assert given(timed(AUTOENCODER), Terms(), [6]).lines() == [
        "2 stages of 14 layers, cut before 6: 13 % and 87 % of the time; 8 microbatches, 1f1b",
        "expected speed-up 1.13x of one device (bubble 44 %); equal layer counts would give "
        "1.75x; no cut can pass 2.6x: layer 6 takes 38 %",
    ]


def test_several_stages_are_listed():
    first, second = choose(timed(AUTOENCODER), Terms(stages=4, schedule="gpipe")).lines()
    assert "4 stages of 14 layers, cut before 6, 7, 8: 13 %, 38 %, 36 % and 12 % of" in first
    assert first.endswith("gpipe")
    assert "speed-up 2.17x of one device" in second
    assert "equal layer counts would give 1.75x" in second


def test_layers_with_names_are_called_by_number_and_name():
    first, second = choose(named(4), Terms()).lines()
    assert "cut before 2 (layers.2): 50 % and 50 % of the time" in first
    assert "equal layer counts give the same" in second
    assert "layer 0 (layers.0) takes 25 %" in second


@pytest.mark.parametrize(
    ("balance", "cuts", "noun"),
    [("time", (1,), "time"), ("flops", (3,), "arithmetic"), ("params", (2,), "parameters")],
)
def test_stages_are_equal_in_what_is_balanced(balance, cuts, noun):
    flops, parameters = [1, 1, 1, 3], [1, 1, 1, 1]
    costs = timed([3, 1, 1, 1], flops=flops, parameters=parameters)
    plan = choose(costs, Terms(balance=balance))
    assert plan.cuts == cuts
    assert plan.shares == pytest.approx((0.5, 0.5))
    assert f"50 % and 50 % of the {noun};" in plan.lines()[0]
    assert (f"the {noun} taken for time" in plan.lines()[1]) == (balance != "time")


def test_where_nothing_is_measured_the_next_measure_is_taken_and_said():
    costs = [LayerCost(str(n), parameters=size) for n, size in enumerate([6, 2, 2, 2])]
    plan = choose(costs, Terms(balance="flops"))
    assert (plan.by, plan.cuts) == ("params", (1,))
    assert "balance=flops measured nothing here: by parameters instead" in plan.lines()
    plain = choose([LayerCost(str(n)) for n in range(4)], Terms(balance="params"))
    assert (plain.by, plain.cuts) == ("layers", (2,))


def test_the_memory_limit_moves_the_cut_and_is_said():
    saved = [GIB, GIB, 0, 0]
    costs = timed([1, 1, 1, 1], saved=saved)
    free = choose(costs, Terms())
    tight = choose(costs, Terms(memory_limit_gib=3))
    assert (free.cuts, free.stage_bytes) == ((2,), (4 * GIB, 0))  # two microbatches in flight
    assert (tight.cuts, tight.stage_bytes) == ((1,), (2 * GIB, GIB))
    assert "estimated memory 2 and 1 GiB, limit 3 GiB" in tight.lines()


def test_a_stage_holds_weights_optimizer_state_and_microbatches_in_flight():
    costs = named(3, parameters=100, trained=60, saved=10, out=7)
    terms = Terms(stages=3, microbatches=2)
    fixed = 100 + 3 * 60 + 7  # its gradients, two moments, and what it sends
    assert choose(costs, terms).stage_bytes == (
        fixed + 2 * 10,
        fixed + 2 * (10 + 7),
        fixed + 1 * (10 + 7),
    )


def test_no_cut_that_fits_is_cheaper():
    costs = timed([5, 1, 4, 2, 2, 6], saved=[3, 1, 4, 1, 5, 9], trained=[2, 7, 1, 8, 2, 8])
    terms = Terms(stages=3, memory_limit_gib=55 / GIB)
    fitting = []
    for cuts in combinations(range(1, 6), 2):
        plan = given(costs, Terms(stages=3), cuts)
        if max(plan.stage_bytes) <= 55:
            fitting.append((max(plan.shares), cuts))
    assert 1 < len(fitting) < 10
    assert choose(costs, terms).cuts == min(fitting)[1]


def test_what_fits_nowhere_is_refused():
    with pytest.raises(
        UsageError, match=r"memory_limit_gib=1.5: under the best one a stage holds about 2 GiB"
    ):
        choose(timed([1, 1], saved=[GIB, 0]), Terms(memory_limit_gib=1.5))
    with pytest.raises(UsageError, match=r"split=\[1\]: stage 0 would hold about 2 GiB, more"):
        given(timed([1, 1], saved=[GIB, 0]), Terms(memory_limit_gib=1.5), [1])


def test_a_slow_link_moves_the_cut_and_slows_the_forecast():
    costs = timed([3, 3, 3, 3], out=[0, 1000, 0, 0])
    assert choose(costs, Terms()).cuts == (2,)
    linked = Terms(bytes_per_s=1e4)  # 0.1 s a message, where a layer takes 0.03 s
    assert choose(costs, linked).cuts == (1,)
    free, slow = given(costs, Terms(), [2]), given(costs, linked, [2])
    assert slow.forecast.step_s > free.forecast.step_s
    late = given(costs, Terms(bytes_per_s=1e9, latency_s=0.1), [1])
    assert late.forecast.speed_up < given(costs, Terms(), [1]).forecast.speed_up


@pytest.mark.parametrize("terms", [Terms(microbatches=1), Terms(bytes_per_s=10.0)])
def test_E15_a_split_that_is_no_faster_than_one_device_says_so(terms):
    lines = given(timed([1, 1], out=[10, 10]), terms, [1]).lines()
    assert lines[-1] == "no faster than one device: strategy.name=single, if the model fits it"
    assert "no faster" not in choose(timed([1, 1]), Terms()).lines()[-1]


@pytest.mark.parametrize("split", [[2, 3], ["layers.2", "layers.3"], [2, "layers.3"]])
def test_a_split_names_layers_by_number_or_name(split):
    plan = given(named(5), Terms(stages=3), split)
    assert (plan.cuts, plan.names) == ((2, 3), ("layers.2", "layers.3"))


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([1], r"split=\[1\] makes 2 stages, but strategy.stages=3: name .* 2 in all"),
        ([0, 2], r"leaves a stage empty: name layers whose numbers rise, from 1 to 3"),
        ([2, 2], r"leaves a stage empty: .*these are 2, 2"),
        ([3, 1], r"leaves a stage empty: .*these are 3, 1"),
        ([1, 4], r"no layer 4 to cut before; its layers are 0 \(layers.0\), .*, 3 \(layers.3\)"),
        ([-1, 2], r"no layer -1 to cut before; its layers are"),
        (["layers.9", 2], r"no layer 'layers.9' to cut before; its layers are 0 \(layers.0\)"),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_the_layers(split, words):
    with pytest.raises(UsageError, match=words):
        given(named(4), Terms(stages=3), split)


def test_an_unknown_balance_is_refused():
    with pytest.raises(UsageError, match=r"strategy.balance=layers is not one of time, flops"):
        choose(named(4), Terms(balance="layers"))
