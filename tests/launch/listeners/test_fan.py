import pytest

from launch.events import Notice
from launch.listeners import fan_out


class Ear:
    def __init__(self, error=None):
        self.heard, self.is_closed, self.error = [], False, error

    def __call__(self, event):
        self.heard.append(event)
        if self.error:
            raise self.error

    def close(self):
        self.is_closed = True
        if self.error:
            raise self.error


def test_all_are_told_in_order_and_closed():
    ears = [Ear(), Ear()]
    fan = fan_out(*ears)
    fan(Notice("one"))
    fan(Notice("two"))
    fan.close()
    assert [ear.heard for ear in ears] == [[Notice("one"), Notice("two")]] * 2
    assert all(ear.is_closed for ear in ears)


def test_one_that_fails_does_not_keep_the_others_from_hearing():
    ears = [Ear(), Ear(OSError("disk full")), Ear(OSError("later")), Ear()]
    fan = fan_out(*ears)
    with pytest.raises(OSError, match="disk full"):
        fan(Notice("one"))
    with pytest.raises(OSError, match="disk full"):
        fan.close()
    assert all(ear.heard and ear.is_closed for ear in ears)


def test_nobody_may_listen():
    nobody = fan_out()
    nobody(Notice("one"))
    nobody.close()
    assert nobody.listeners == ()
