"""The jar that is in the repository is that of the sources beside it."""

from __future__ import annotations

import zipfile

from marshal_py.spark.connector import CONDITIONAL_PUT
from tests.spark.build_jar import MANIFEST, SOURCES, manifest


def test_the_jar_was_built_from_these_sources() -> None:
    with zipfile.ZipFile(CONDITIONAL_PUT) as jar:
        assert jar.read(MANIFEST) == manifest(), "run: python -m tests.spark.build_jar"
        names = {name.partition("$")[0].removesuffix(".class") for name in jar.namelist()}
    sources = {str(p.relative_to(SOURCES).with_suffix("")) for p in SOURCES.rglob("*.java")}
    assert names - {MANIFEST} == sources
