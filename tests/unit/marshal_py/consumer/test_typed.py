"""Typing errors in programs are found by mypy, and at run time before anything starts."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from marshal_py import Consumer, Marshal
from marshal_py.client.options import ClientOptions
from marshal_py.consumer.arguments import ConsumerArguments, RunArguments
from marshal_py.consumer.typed import decoder
from marshal_py.errors import ConfigurationError, HandlerFailed
from marshal_py.testing import TestBroker
from tests.support.paths import ROOT

HEAD = """\
from collections.abc import Callable
import msgspec
from confluent_kafka import Message
from marshal_py import AsyncConsumer, Claim, Consumer, Failure, Retry, Stuck, TypedMessage

class Order(msgspec.Struct):
    total: int

def handle(message: Message) -> None: ...
def handle_order(message: TypedMessage[Order]) -> None: ...
async def handle_later(message: Message) -> None: ...
def nothing() -> None: ...
def three(message: Message, claim: Claim, more: int) -> None: ...

def consumer() -> Consumer:
    return Consumer("127.0.0.1:1", group_id="g", topics="t", connect_timeout_ms=1)
"""

RIGHT = """
def batch(messages: list[Message]) -> None: ...
def with_claim(message: Message, *, claim: Claim) -> None: ...
orders = Consumer("127.0.0.1:1", group_id="g", topics="t", decode=Order, client_id="a")
for message in orders:
    order = message.value()
    if order is not None:
        print(order.total + 1)
orders.run(handle_order, workers=2, on_failure=lambda failure: "skip")
consumer().run(handle)
consumer().run(handle_later)
consumer().run(lambda message, claim: print(message, claim.epoch))
consumer().run(with_claim)
consumer().run(batch, batch_size=10)
numbers: Consumer[int] = Consumer("127.0.0.1:1", group_id="g", topics="t", decode=int)


async def asynchronous() -> None:
    orders = AsyncConsumer("127.0.0.1:1", group_id="g", topics="t", decode=Order, client_id="a")
    async for message in orders:
        order = message.value()
        if order is not None:
            print(order.total + 1)
    await orders.run(handle_order, workers=2)
    await AsyncConsumer("127.0.0.1:1", group_id="g", topics="t").run(handle_later, ordering="none")
"""

TYPOS = [
    'Consumer("127.0.0.1:1", group_id="g", topics="t", clinet_id="a")',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", bacth_size=3)',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", mode="at_least_onc")',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", start="earlist")',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", on_missing="erliest")',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", interval_ms="5000")',
    'AsyncConsumer("127.0.0.1:1", group_id="g", topics="t", bacth_size=3)',
    'AsyncConsumer("127.0.0.1:1", group_id="g", topics="t", mode="at_least_onc")',
    'consumer().run(handle, orderng="key")',
    'consumer().run(handle, on_failure="deadletter")',
    "consumer().run(handle, retry=Retry(atempts=3))",
    "consumer().run(nothing)",
    "consumer().run(three)",
    'consumer().run(handle_later, executor="threads")',
    "consumer().run(handle, on_stuck=nothing)",
    "consumer().run(handle, on_failure=nothing)",
]
"""Each is found by both."""

FOR_MYPY = [
    "consumer().run(handle_order)",
    'AsyncConsumer("127.0.0.1:1", group_id="g", topics="t").run(handle, orderng="key")',
    'Consumer("127.0.0.1:1", group_id="g", topics="t", decode=Order).poll().value().totl',
]


def test_mypy_finds_each_typo_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(HEAD + RIGHT)
    wrong.write_text(HEAD + "\n".join([*TYPOS, *FOR_MYPY]) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", str(right), str(wrong)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {line.split(":")[1] for line in done.stdout.splitlines() if "wrong.py" in line}
    assert "right.py" not in done.stdout, done.stdout
    first = HEAD.count("\n") + 1
    assert found == {str(first + n) for n in range(len(TYPOS + FOR_MYPY))}, done.stdout


@pytest.mark.parametrize("typo", TYPOS)
def test_a_typo_is_found_before_anything_starts(typo: str) -> None:
    program: dict[str, Any] = {}
    exec(HEAD, program)
    with pytest.raises((TypeError, ConfigurationError)):
        exec(typo, program)


def test_the_options_that_a_consumer_passes_on_are_those_of_the_client() -> None:
    of_client = set(inspect.signature(Marshal.__init__).parameters)
    own = {"self", "config", "group_id", "member", "member_metadata"}
    assert set(ClientOptions.__annotations__) == of_client - own


def test_the_arguments_that_asyncio_passes_on_are_those_of_the_consumer() -> None:
    of_consumer = set(inspect.signature(Consumer.__init__).parameters)
    own = {"self", "config", "decode", "settings"}
    client = set(ClientOptions.__annotations__)
    assert set(ConsumerArguments.__annotations__) - client == of_consumer - own
    of_run = set(inspect.signature(Consumer.run).parameters)
    assert set(RunArguments.__annotations__) == of_run - {"self", "handler"}


class Struct(msgspec.Struct):
    total: int


class Model(pydantic.BaseModel):
    total: int


@pytest.mark.parametrize("decode", [Struct, Model, lambda value: Struct(len(value) - 9)])
def test_values_are_decoded(decode: Any, mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", b'{"total":7}', None, partition=0)
    consumer = mock_kafka.consumer("orders", decode=decode)
    got: list[Any] = []
    mock_kafka.run(lambda message: got.append(message.value()), consumer, ordering="partition")
    assert [None if value is None else value.total for value in got] in ([7, None], [2, None])


def test_a_type_with_parameters_is_no_function_of_the_bytes() -> None:
    read = decoder(list[Struct])
    assert read(b'[{"total":7}]', None) == [Struct(7)]


def test_what_cannot_be_read_fails(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", b"nonsense")
    with pytest.raises(HandlerFailed, match="cannot be read"):
        mock_kafka.run(print, mock_kafka.consumer("orders", decode=Struct))


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="decode = "):
        decoder(3)
    with pytest.raises(ConfigurationError, match="give one of them"):
        Consumer("x:1", group_id="g", topics="t", decode=int, value_deserializer=print)


def test_a_value_without_a_byte_is_no_tombstone() -> None:
    """A tombstone says that a key is gone; an empty value may mean anything."""
    read = decoder(lambda value: f"read {value!r}")
    assert (read(b"", None), read(None, None)) == ("read b''", None)
