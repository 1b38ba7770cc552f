"""The pages that are open: who is sent what, and that all are told of the end."""

from __future__ import annotations

import asyncio

import pytest

from marshal_py.dashboard.subscribers import WAITING, Subscriber, Subscribers


class Page(Subscriber):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes] | None] = []
        self.overrun = True

    def put(self, item: tuple[str, bytes] | None) -> None:
        self.sent.append(item)


def test_a_page_gets_everything_and_then_what_all_get_until_it_goes() -> None:
    pages, early, late = Subscribers(), Page(), Page()
    assert not pages
    pages.add(early, {"n": 1})
    assert pages
    assert not early.overrun, "it has everything, and is behind with nothing"
    pages.send("delta", {"n": 2})
    pages.add(late, {"n": 3})
    pages.send("state", {"n": 4})
    pages.remove(early)
    pages.remove(early)
    pages.send("delta", {"n": 5})
    assert early.sent == [("state", b'{"n":1}'), ("delta", b'{"n":2}'), ("state", b'{"n":4}')]
    assert late.sent == [("state", b'{"n":3}'), ("state", b'{"n":4}'), ("delta", b'{"n":5}')]
    pages.end()
    assert (early.sent[-1], late.sent[-1]) == (("state", b'{"n":4}'), None)
    pages.remove(late)
    assert not pages


def test_a_page_that_is_as_far_behind_as_it_may_be_is_not_overrun() -> None:
    async def run() -> None:
        page = Subscriber()
        for _ in range(WAITING):
            page.put(("delta", b""))
        await asyncio.sleep(0)
        assert not page.overrun
        page.put(("delta", b""))
        await asyncio.sleep(0)
        assert page.overrun

    asyncio.run(run())


def test_the_end_comes_behind_what_waits_even_where_there_is_no_room() -> None:
    async def run() -> None:
        page = Subscriber()
        for _ in range(WAITING):
            page.put(("delta", b""))
        page.put(None)
        await asyncio.sleep(0)
        assert not page.overrun
        assert [await page.get(60) for _ in range(WAITING + 1)][-1] is None
        with pytest.raises(TimeoutError):
            await page.get(0)

    asyncio.run(run())
