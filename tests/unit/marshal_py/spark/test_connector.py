"""Jars for Spark: all of them and whole, or none, whatever happens to a download."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marshal_py.embedded import jar_hashes
from marshal_py.embedded.errors import DownloadFailed
from marshal_py.spark import connector
from marshal_py.spark.connector import CONDITIONAL_PUT, COORDINATES, S3, connector_jars, s3_jars

HOME = connector._KAFKA.home
Change = Callable[[Path], None]


def name_of(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def put(folder: Path, coordinates: tuple[str, ...]) -> None:
    for coordinate in coordinates:
        with zipfile.ZipFile(folder / name_of(coordinate), "w") as jar:
            jar.writestr(zipfile.ZipInfo("a.class"), coordinate.encode() * 50)


class Registry:
    """Stands in for both ways to the real one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.changes: dict[str, Change] = {}

    def way(self, name: str) -> Callable[[connector._Bundle, Path], None]:
        def fetch(bundle: connector._Bundle, folder: Path) -> None:
            self.calls.append(name)
            put(folder, bundle.coordinates)
            if name in self.changes:
                self.changes[name](folder)

        return fetch


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "marshal-py"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(connector, "_with_python", registry.way("python"))
    monkeypatch.setattr(connector, "_with_mvn", registry.way("mvn"))
    published = tmp_path / "published"
    published.mkdir()
    put(published, (*COORDINATES, *S3))
    hashes = {j.name: hashlib.sha256(j.read_bytes()).hexdigest() for j in published.glob("*.jar")}
    pinned = {
        bundle.home: {name_of(c): hashes[name_of(c)] for c in bundle.coordinates}
        for bundle in (connector._KAFKA, connector._S3)
    }
    monkeypatch.setattr(jar_hashes, "_pinned", lambda: pinned)
    return registry


def fail(_: Path) -> None:
    raise DownloadFailed("the network is down.")


def cut(folder: Path) -> None:
    jar = folder / name_of(COORDINATES[-1])
    jar.write_bytes(jar.read_bytes()[:-40])


def flip(folder: Path) -> None:
    jar = folder / name_of(COORDINATES[-1])
    jar.write_bytes(jar.read_bytes().replace(b"postgresql", b"postgresqk", 1))


def forget(folder: Path) -> None:
    (folder / name_of(COORDINATES[0])).unlink()


def exchange(folder: Path) -> None:
    """A whole jar that is another one."""
    with zipfile.ZipFile(folder / name_of(COORDINATES[-1]), "w") as jar:
        jar.writestr("a.class", b"y" * 1000)


def test_jars_are_fetched_once_and_named_in_their_order(registry: Registry, cache: Path) -> None:
    said: list[str] = []
    found = connector_jars(progress=said.append)
    assert found == [cache / HOME / name_of(coordinate) for coordinate in COORDINATES]
    assert connector_jars(progress=said.append) == found
    assert registry.calls == ["python"]
    assert [line.split()[0] for line in said] == ["downloading"]
    assert {path.name for path in cache.iterdir()} == {HOME, f"{HOME}.lock"}
    assert (cache / HOME).stat().st_mode & 0o777 == 0o755  # for whoever shares the cache


def test_who_waited_for_another_process_takes_what_that_has_fetched(
    registry: Registry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def waited(home: Path, _progress: object) -> Iterator[None]:
        home.mkdir(parents=True)
        put(home, COORDINATES)
        yield

    monkeypatch.setattr(connector, "locked", waited)
    assert [jar.name for jar in connector_jars()] == [name_of(c) for c in COORDINATES]
    assert registry.calls == []


def test_what_is_in_the_cache_but_for_a_jar_is_fetched_anew(
    registry: Registry, cache: Path
) -> None:
    (jar, *_) = connector_jars()
    jar.unlink()
    assert jar in connector_jars()
    assert jar.exists()
    assert registry.calls == ["python", "python"]


@pytest.mark.parametrize("change", [fail, cut, flip, forget, exchange])
def test_a_download_that_is_not_the_published_one_is_thrown_away_and_the_next_way_tried(
    registry: Registry, cache: Path, change: Change
) -> None:
    registry.changes = {"python": change}
    assert all(jar.exists() for jar in connector_jars())
    assert registry.calls == ["python", "mvn"]
    assert {path.name for path in cache.iterdir()} == {HOME, f"{HOME}.lock"}


def test_the_error_tells_of_every_way_and_nothing_stays(registry: Registry, cache: Path) -> None:
    registry.changes = {"python": fail, "mvn": cut}
    with pytest.raises(DownloadFailed, match=r"(?s)- the network.*- postgresql.*Give its jars"):
        connector_jars()
    assert [path.name for path in cache.iterdir()] == [f"{HOME}.lock"]


def test_a_way_that_fails_says_what_it_said(tmp_path: Path) -> None:
    script = "print('no route'); raise SystemExit(3)"
    with pytest.raises(DownloadFailed, match=r"^no route$"):
        connector._run([sys.executable, "-c", script], dict(os.environ), tmp_path)
    with pytest.raises(DownloadFailed, match="nowhere"):
        connector._run([str(tmp_path / "nowhere")], {}, tmp_path)


def test_a_way_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(argv: list[str], *, timeout: float, **_: object) -> Any:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DownloadFailed, match="timed out after 600 seconds"):
        connector._run(["mvn"], {}, tmp_path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"SSL_CERT_FILE": "/a.pem"}, "/a.pem"),
        ({"SSL_CERT_FILE": "/a.pem", "REQUESTS_CA_BUNDLE": "/b.pem"}, "/b.pem"),
        ({}, None),
    ],
)
def test_certificates_of_the_machine_are_known_to_the_one_that_fetches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], told: str | None
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        if name in given:
            monkeypatch.setenv(name, given[name])
    found: list[str | None] = []
    monkeypatch.setattr(
        connector, "_run", lambda _argv, env, _cwd: found.append(env.get("REQUESTS_CA_BUNDLE"))
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    connector._with_python(connector._KAFKA, tmp_path)
    assert found == [told]


def test_jars_for_s3_are_fetched_but_for_the_one_that_comes_along(registry: Registry) -> None:
    *fetched, ours = s3_jars()
    assert [jar.name for jar in fetched] == [name_of(coordinate) for coordinate in S3]
    assert ours == CONDITIONAL_PUT
    assert ours.exists()
