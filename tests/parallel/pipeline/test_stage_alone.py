from weakref import ref

from torch import nn

from parallel.pipeline.holding import Holding


def test_what_other_stages_hold_takes_no_memory():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[1].weight  # tied, on the stages 1 and 2
    holding = Holding(model, [[layer] for layer in model], own=0)
    gone = [ref(p.untyped_storage()) for p in model[1:].parameters()]
    holding.forget_others()
    assert [storage() for storage in gone] == [None] * 3
    assert all(p.is_meta for p in model[1:].parameters())
    assert holding.tied == [(model[1].weight, [1, 2])]
    assert model[2].weight is model[1].weight
