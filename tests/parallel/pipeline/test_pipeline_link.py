"""Messages between neighbours describe themselves: sizes, dtypes and kinds may change at will."""

from __future__ import annotations

import torch

from parallel.pipeline.link import connect
from parallel.pipeline.mesh import Mesh


def values():
    """Return what is sent one after the other, the same on both sides."""
    x = torch.arange(24.0).reshape(4, 6)
    shared = torch.ones(3)
    return [
        x,
        x[:3],  # fewer rows
        x.repeat(50, 1),  # more than ever before
        x.bfloat16(),
        x.long(),
        (x.T, x[:, ::2], x.expand(2, 4, 6)),  # none of them contiguous
        {"x": x, "mask": x > 5, "none": None, "nested": [(x[0, 0], {})]},
        [torch.zeros(0, 6), x[:0], torch.tensor(3)],
        (shared, shared),
        torch.complex(x, -x).conj(),
        torch.complex(x, -x).conj().imag,  # a negative view
        [1, x],
        [True, x],
        [1.0, x],
        [float("nan"), x],
        [float("nan"), x],
        [-0.0, x],
        [0.0, x],
        None,
        "text",
        x,
        x,
    ]


def alike(mine, sent):
    if isinstance(sent, torch.Tensor):
        assert mine.dtype == sent.dtype
        assert mine.shape == sent.shape
        assert torch.equal(mine, sent.resolve_conj().resolve_neg())
    elif isinstance(sent, dict | list | tuple):
        assert type(mine) is type(sent)
        assert len(mine) == len(sent)
        pairs = zip(mine, sent, strict=True)
        if isinstance(sent, dict):
            assert list(mine) == list(sent)
            pairs = zip(mine.values(), sent.values(), strict=True)
        for one, other in pairs:
            alike(one, other)
    else:
        assert repr(mine) == repr(sent)


def exchange(world, ahead):
    links = connect(Mesh(world, 2), ahead)
    for value in values():
        if links.outputs is not None:
            links.outputs.send(value)
            back = links.gradients.value()
        else:
            back = links.inputs.value()
            links.back.send(value)
        alike(back, value)
    links.settle()


def test_E10_E11_messages_of_changing_kinds_arrive_as_they_were_sent(in_ranks):
    in_ranks(2, exchange, 1)


def many_ahead(world):
    links = connect(Mesh(world, 2), 3)
    for number in range(40):
        value = torch.full((1 + number % 5, 7), float(number))
        if links.outputs is not None:
            links.outputs.send(value if number % 3 else None) if number % 4 else (
                links.outputs.send_nothing()
            )
        else:
            received = links.inputs.receive()
            assert (received is None) == (not number % 4)
            if received is not None:
                form, tensors = received
                assert (form is None) == (not number % 3)
                assert all(torch.equal(each, value) for each in tensors)
    links.settle()


def test_messages_and_nothings_keep_their_order_while_several_are_under_way(in_ranks):
    in_ranks(2, many_ahead)
