"""The cache of Kafka's jars: complete or absent, whatever happens to a download."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from marshal_py.embedded import DownloadFailed, jar_hashes, jars, kafka_home
from marshal_py.errors import InvalidArgument
from marshal_py.spark import connector

Fetch = Callable[[Path, list[str]], None]


def put_jars(libs: Path) -> None:
    for name in ("kafka_2.13-4.1.0", "kafka-clients-4.1.0", "slf4j-simple-1.7.36", "other-1"):
        with zipfile.ZipFile(libs / f"{name}.jar", "w") as jar:
            jar.writestr(zipfile.ZipInfo("a.class"), b"x" * 1000)  # of no time: the same each time


class Registry:
    """Stands in for both ways to the real one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: dict[str, Fetch] = {}

    def way(self, name: str) -> Fetch:
        def fetch(libs: Path, coordinates: list[str]) -> None:
            self.calls.append(name)
            put_jars(libs)
            if name in self.broken:
                self.broken[name](libs, coordinates)

        return fetch


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MARSHAL_JARS", raising=False)
    monkeypatch.setattr(jars, "_FETCH", {way: registry.way(way) for way in jars.WAYS})
    published = tmp_path / "published"
    published.mkdir()
    put_jars(published)
    hashes = {j.name: hashlib.sha256(j.read_bytes()).hexdigest() for j in published.glob("*.jar")}
    monkeypatch.setattr(jar_hashes, "_pinned", lambda: {"kafka-4.1.0": hashes})
    return registry


def fail(libs: Path, coordinates: list[str]) -> None:
    raise DownloadFailed("the network is down.")


def test_a_download_happens_once(registry: Registry, tmp_path: Path) -> None:
    lines: list[str] = []
    home = kafka_home(progress=lines.append)
    assert home == tmp_path / "marshal-py" / "kafka-4.1.0"
    assert len(jars.jars(home)) == 4
    assert kafka_home(progress=lines.append) == home
    assert registry.calls == ["python"]
    assert len(lines) == 2
    assert "downloading Apache Kafka 4.1.0" in lines[0]


def test_nothing_but_the_home_and_its_lock_stays(registry: Registry, tmp_path: Path) -> None:
    kafka_home()
    assert {path.name for path in (tmp_path / "marshal-py").iterdir()} == {
        "kafka-4.1.0",
        "kafka-4.1.0.lock",
    }


def test_the_second_way_is_tried_when_the_first_fails(registry: Registry) -> None:
    registry.broken["python"] = fail
    kafka_home()
    assert registry.calls == ["python", "mvn"]


def test_the_error_tells_about_every_way(registry: Registry, tmp_path: Path) -> None:
    registry.broken = {"python": fail, "mvn": fail}
    with pytest.raises(DownloadFailed, match=r"(?s)- python: the network.*- mvn: the network"):
        kafka_home()
    assert [path.name for path in (tmp_path / "marshal-py").iterdir()] == ["kafka-4.1.0.lock"]


@pytest.mark.parametrize("way", jars.WAYS)
def test_a_way_can_be_chosen(registry: Registry, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    kafka_home(way=way)
    monkeypatch.setenv("MARSHAL_JARS", way)
    kafka_home("4.1.0")
    assert registry.calls == [way]


def truncate(libs: Path, coordinates: list[str]) -> None:
    jar = libs / "other-1.jar"
    jar.write_bytes(jar.read_bytes()[:-40])


def flip(libs: Path, coordinates: list[str]) -> None:
    jar = libs / "other-1.jar"
    jar.write_bytes(jar.read_bytes().replace(b"xxx", b"xyx", 1))


def forget(libs: Path, coordinates: list[str]) -> None:
    (libs / "kafka-clients-4.1.0.jar").unlink()


def exchange(libs: Path, coordinates: list[str]) -> None:
    """A whole jar that is another one."""
    with zipfile.ZipFile(libs / "other-1.jar", "w") as jar:
        jar.writestr(zipfile.ZipInfo("a.class"), b"y" * 1000)


def add(libs: Path, coordinates: list[str]) -> None:
    (libs / "other-1.jar").rename(libs / "another-1.jar")
    put_jars(libs)


@pytest.mark.parametrize(("change", "said"), [(exchange, "expected"), (add, "another-1.jar is no")])
def test_jars_that_are_not_the_published_ones_are_refused(
    registry: Registry, tmp_path: Path, change: Fetch, said: str
) -> None:
    registry.broken = dict.fromkeys(jars.WAYS, change)
    with pytest.raises(DownloadFailed, match=said):
        kafka_home()
    assert not (tmp_path / "marshal-py" / "kafka-4.1.0").exists()


def test_a_version_whose_hashes_are_not_known_is_refused_unless_it_is_trusted(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jar_hashes, "_pinned", lambda: {"kafka-3.9.1": {}, "spark-4.2": {}})
    with pytest.raises(InvalidArgument, match=r"'4\.1\.0'.* those of 3\.9\.1 are.*UNPINNED_JARS=1"):
        kafka_home()
    assert registry.calls == []
    monkeypatch.setenv("MARSHAL_UNPINNED_JARS", "1")
    assert kafka_home().is_dir()


@pytest.mark.parametrize("version", [jars.DEFAULT_VERSION, "3.9.1", "4.2.0"])
def test_the_hashes_of_the_tested_versions_come_along(version: str) -> None:
    pinned = jar_hashes._pinned()[f"kafka-{version}"]
    assert f"kafka-clients-{version}.jar" in pinned
    assert all(len(digest) == 64 for digest in pinned.values())


@pytest.mark.parametrize("damage", [truncate, flip, forget])
def test_a_damaged_download_is_refused(registry: Registry, damage: Fetch) -> None:
    registry.broken["python"] = damage
    with pytest.raises(DownloadFailed, match=r"damaged|did not come"):
        kafka_home(way="python")
    registry.broken.clear()
    kafka_home(way="python")


@pytest.mark.parametrize("damage", [truncate, forget])
def test_a_cache_damaged_later_is_made_anew(registry: Registry, damage: Fetch) -> None:
    damage(kafka_home() / "libs", [])
    kafka_home()
    assert registry.calls == ["python", "python"]


@pytest.mark.parametrize("version", ["4.1", "latest", "../4.1.0", ""])
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(InvalidArgument, match="version="):
        kafka_home(version)


def test_a_way_must_exist() -> None:
    with pytest.raises(InvalidArgument, match="jars_from='ivy'"):
        kafka_home(way="ivy")


def test_an_unusable_cache_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadFailed, match="XDG_CACHE_HOME"):
        kafka_home()


BUNDLES = [connector._KAFKA, connector._DELTA]


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.home)
def test_the_jars_for_spark_are_pinned_all_of_them(bundle: connector._Bundle) -> None:
    pinned = jar_hashes._pinned()[bundle.home]
    assert set(pinned) == {connector._file_name(each) for each in bundle.coordinates}


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.home)
def test_another_jar_than_those_for_spark_is_refused(
    bundle: connector._Bundle, tmp_path: Path
) -> None:
    for coordinate in bundle.coordinates:
        with zipfile.ZipFile(tmp_path / connector._file_name(coordinate), "w") as jar:
            jar.writestr("a.class", b"x")
    with pytest.raises(DownloadFailed, match="expected"):
        connector._check(bundle, tmp_path)


# How jars are fetched


def test_what_a_tool_says_last_when_it_fails_is_told_and_that_it_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "for n in 1 2 3 4 5 6 7; do echo line $n; done; echo err >&2; exit 3"
    with pytest.raises(DownloadFailed) as failed:
        jars._run(["/bin/sh", "-c", script])
    assert str(failed.value).splitlines() == ["line 4", "line 5", "line 6", "line 7", "err"]
    with pytest.raises(DownloadFailed, match="exit code 3"):
        jars._run(["/bin/sh", "-c", "exit 3"])
    with pytest.raises(DownloadFailed, match="/no/such/tool"):
        jars._run(["/no/such/tool"])
    monkeypatch.setattr(jars, "_TIMEOUT_S", 0.05)
    with pytest.raises(DownloadFailed, match="timed out"):
        jars._run(["/bin/sleep", "600"])
    jars._run(["/bin/sh", "-c", ":"])


def test_the_machines_certificates_are_those_of_the_download_unless_it_has_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(jars, "_run", lambda _argv, env: given.append(env))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", "/machines.pem")
    jars._with_python(tmp_path, [])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/own.pem")
    jars._with_python(tmp_path, [])
    assert [env["REQUESTS_CA_BUNDLE"] for env in given] == ["/machines.pem", "/own.pem"]


def test_maven_is_asked_for_what_is_needed_at_run_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("shutil.which", lambda _: "/bin/mvn")
    monkeypatch.setattr(jars, "_run", lambda argv, cwd: asked.extend([*argv, str(cwd)]))
    libs = tmp_path / "libs"
    jars._with_mvn(libs, ["org.a:b:1", "org.c:d<:2"])
    assert "-DincludeScope=runtime" in asked
    assert f"-DoutputDirectory={libs}" in asked
    assert asked[-1] == str(tmp_path)
    pom = (tmp_path / "pom.xml").read_text()
    assert "<groupId>org.a</groupId><artifactId>b</artifactId><version>1</version>" in pom
    assert "<artifactId>d&lt;</artifactId>" in pom
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(DownloadFailed, match="no mvn on PATH"):
        jars._with_mvn(libs, [])


def test_what_a_killed_download_left_is_swept_before_the_next(
    registry: Registry, tmp_path: Path
) -> None:
    left = tmp_path / "marshal-py" / ".kafka-4.1.0.abc"
    (left / "libs").mkdir(parents=True)
    another = tmp_path / "marshal-py" / ".kafka-3.9.1.abc"
    another.mkdir()
    kafka_home()
    assert not left.exists()
    assert another.exists(), "somebody may be at it"


def test_who_waited_for_a_download_uses_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made between the first look and the lock."""
    complete = jars._complete
    looks: list[bool] = []

    def look(home: Path) -> bool:
        if not looks:
            jars._fill(home, "4.1.0", "python", lambda _: None)
            looks.append(False)
            return False
        looks.append(complete(home))
        return looks[-1]

    (Path(jars.cache_root())).mkdir(parents=True)
    monkeypatch.setattr(jars, "_complete", look)
    kafka_home()
    assert registry.calls == ["python"]
    assert looks == [False, True]


def test_what_is_said_here_wins_over_the_environment(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARSHAL_JARS", "mvn")
    kafka_home(way="python")
    assert registry.calls == ["python"]
