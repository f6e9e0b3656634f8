# SPDX-License-Identifier: Apache-2.0
"""What //bindings/python/abi3 makes of C++ functions and classes."""

import gc
import sys

import _example
import pytest


def test_arguments_go_by_position_and_by_name():
    expected = {"flag": True, "text": "ü", "number": -7, "numbers": [1, 2]}
    assert _example.describe(True, "ü", -7, [1, 2]) == expected
    assert _example.describe(numbers=(1, 2), number=-7, text="ü", flag=1) == expected
    assert _example.describe(True, "ü", numbers=[1, 2], number=-7) == expected


@pytest.mark.parametrize("number", [{"number": None}, {}])
def test_an_optional_argument_may_be_none_or_left_out(number):
    assert "number" not in _example.describe(True, "", numbers=[], **number)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _example.sum(), 'sum() needs its argument "counters"'),
        (lambda: _example.sum([], []), "sum() takes 1 arguments at most"),
        (lambda: _example.sum([], counters=[]), 'sum() got its argument "counters" twice'),
        (lambda: _example.sum(counter=[]), 'sum() has no argument "counter"'),
        (lambda: _example.sum([1]), 'sum(): "counters" has to be a Counter, not int'),
        (lambda: _example.sum("ab"), 'sum(): "counters" has to be a sequence, not str'),
        (
            lambda: _example.Counter(1.5),
            '__init__(): "start" has to be an int between -9223372036854775808 and '
            "9223372036854775807, not float",
        ),
        (
            lambda: _example.Counter(0).add(256),
            'add(): "count" has to be an int between 0 and 255, not 256',
        ),
        (
            lambda: _example.Counter(0).add(-1),
            'add(): "count" has to be an int between 0 and 255, not -1',
        ),
        (
            lambda: _example.Counter(0).add(2**70),
            f'add(): "count" has to be an int between 0 and 255, not {2**70}',
        ),
        (lambda: _example.echo("text"), 'echo(): "data" has to be bytes, not str'),
        (lambda: _example.throw(b"text"), 'throw(): "what" has to be a str, not bytes'),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_allowed(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_a_number_may_be_any_object_with_an_index():
    class Two:
        def __index__(self):
            return 2

    counter = _example.Counter(Two())
    assert counter.total == 2


def test_text_that_is_not_utf8_is_shown_escaped():
    assert _example.echo(b"\xff\0") == b"\xff\0"
    assert _example.quote(b"a\xffb") == "a\\xffb"


def test_a_surrogate_in_text_is_refused():
    with pytest.raises(UnicodeEncodeError):
        _example.throw("\udcff")


def test_cpp_exceptions_become_pythons():
    with pytest.raises(ValueError, match="no such value"):
        _example.throw("value")
    with pytest.raises(MemoryError):
        _example.throw("memory")
    with pytest.raises(RuntimeError, match="something else"):
        _example.throw("something else")


def test_an_exception_of_an_argument_goes_through():
    class Broken:
        def __index__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        _example.Counter(Broken())


def test_an_object_lives_as_long_as_its_last_reference():
    before = _example.alive()
    counter = _example.Counter(5)
    counter.add(count=2)
    same = counter.same()
    assert (same.total, _example.alive()) == (7, before + 1)
    del counter
    assert (same.total, _example.alive()) == (7, before + 1)
    del same
    gc.collect()
    assert _example.alive() == before


def test_an_argument_that_is_made_for_the_call_lives_until_its_end():
    class Made:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return _example.Counter(index + 1)

    before = _example.alive()
    assert _example.sum(Made()) == 6
    assert _example.alive() == before


def test_a_view_of_an_objects_bytes_keeps_it_and_is_read_only():
    before = _example.alive()
    view = memoryview(_example.Counter(258))
    assert (bytes(view[:2]), view.nbytes, view.readonly) == (b"\2\1", 8, True)
    with pytest.raises(TypeError):
        view[0] = 1
    assert _example.alive() == before + 1
    del view
    assert _example.alive() == before


def test_a_static_method_makes_objects_of_its_type():
    assert type(_example.Counter.zero()) is _example.Counter


def test_a_type_without_init_makes_no_objects():
    with pytest.raises(TypeError):
        type(_example.token())()


def test_a_type_and_a_function_say_what_they_are():
    assert (_example.Counter.__module__, _example.Counter.__name__) == ("_example", "Counter")
    assert _example.alive.__doc__ == "Returns how many counters there are."
    assert _example.ANSWER == 42


def test_references_do_not_leak():
    text, numbers, counters = "t" * 50, [2**40, 2**41], [_example.Counter(0)]

    def references():
        return [sys.getrefcount(thing) for thing in (text, numbers, counters, counters[0])]

    before = references()
    for _ in range(100):
        _example.describe(True, text, None, numbers)
        _example.sum(counters)
        counters[0].same()
        with pytest.raises(TypeError):
            _example.describe(True, text, text, numbers)
    assert references() == before
