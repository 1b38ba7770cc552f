"""Where a command connects to: flags over environment over file, checked before any network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from marshal_py.client.settings import DEFAULT_TOPIC, KafkaConfig, kafka_config
from marshal_py.errors import ConfigurationError

__all__ = ["Connection", "Flags", "Progress", "parse_settings", "read_config_file"]


LONGEST_TIMEOUT_S: Final = 3_600
"""librdkafka waits for no answer of the brokers for longer."""

Progress: TypeAlias = Callable[[int, int], None]


def _tell_nobody(_done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class Flags:
    """The connection flags as given, before or after the command's name; later ones win."""

    bootstrap_servers: str | None = None
    settings: Sequence[str] = ()
    config_file: Path | None = None
    topic: str | None = None
    timeout_s: float | None = None

    def over(self, earlier: Flags) -> Flags:
        """Return these flags, and the earlier ones where these say nothing."""
        return Flags(
            self.bootstrap_servers or earlier.bootstrap_servers,
            (*earlier.settings, *self.settings),
            self.config_file or earlier.config_file,
            self.topic or earlier.topic,
            earlier.timeout_s if self.timeout_s is None else self.timeout_s,
        )


@dataclass(frozen=True)
class Connection:
    """Checked librdkafka settings and the names of the two topics."""

    kafka: KafkaConfig = field(repr=False)
    topic: str = DEFAULT_TOPIC
    timeout_s: float = 10.0
    progress: Progress = field(default=_tell_nobody, repr=False, compare=False)
    """Told how far the log was read: records, and how many there are."""

    @property
    def snapshot_topic(self) -> str:
        """The topic that holds the snapshots of `topic`."""
        return f"{self.topic}.snapshots"

    @classmethod
    def of(cls, flags: Flags) -> Connection:
        """Put flags and file together. Raises `ConfigurationError` that says what to give."""
        merged: dict[str, Any] = {}
        if flags.config_file is not None:
            merged |= read_config_file(flags.config_file)
        if flags.bootstrap_servers:
            merged["bootstrap.servers"] = flags.bootstrap_servers
        merged |= parse_settings(flags.settings)
        if "bootstrap.servers" not in merged and "metadata.broker.list" not in merged:
            raise ConfigurationError(
                "no brokers given: add `-b HOST:PORT`, set MARSHAL_BOOTSTRAP_SERVERS, or put "
                "bootstrap.servers into the file of `--config`"
            )
        timeout_s = 10.0 if flags.timeout_s is None else flags.timeout_s
        if not timeout_s > 0:
            raise ConfigurationError(f"--timeout {timeout_s:g} must be above 0 seconds")
        if timeout_s > LONGEST_TIMEOUT_S:
            raise ConfigurationError(
                f"--timeout {timeout_s:g} is above {LONGEST_TIMEOUT_S} seconds"
            )
        return cls(kafka_config(merged), flags.topic or DEFAULT_TOPIC, timeout_s)

    @classmethod
    def of_servers(cls, servers: str, topic: str = DEFAULT_TOPIC) -> Connection:
        """Return a connection that needs nothing but the brokers' addresses."""
        return cls.of(Flags(servers, topic=topic))


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings given as `-X KEY=VALUE`. Raises `ConfigurationError`."""
    return dict(map(_setting, texts))


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        # The text may be a password that lacks its key: do not repeat it.
        raise ConfigurationError("-X wants KEY=VALUE, for example `-X security.protocol=SSL`")
    return key.strip(), value


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the librdkafka settings in a properties or YAML file, in UTF-8.

    A properties file has a `key=value` on each line, and comments after `#` or `!`. A YAML file
    (`.yaml`, `.yml`) has a mapping; nested keys are joined by dots. Raises `ConfigurationError`.
    """
    try:
        text = path.read_text("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(f"--config {path}: {reason}") from None
    if path.suffix.lower() in (".yaml", ".yml"):
        return _yaml(path, text)
    return _properties(path, text)


def _properties(path: Path, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"--config {path}, line {number}: not of the form key=value")
        found[key.strip()] = value.strip()
    return found


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            f"--config {path}: YAML needs PyYAML: run `pip install pyyaml`, or write the settings "
            "as key=value lines in a .properties file"
        ) from None
    try:
        tree = yaml.safe_load(text)
        return _flat(path, tree) if isinstance(tree, Mapping) else _no_mapping(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        # ValueError: a date or number that is none. RecursionError: a bomb.
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"--config {path}{where}: not valid YAML") from None


def _no_mapping(path: Path) -> NoReturn:
    raise ConfigurationError(f"--config {path}: not a mapping of settings to values")


def _flat(path: Path, tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(path, value, f"{name}.")
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = value if isinstance(value, str) else str(value)
        else:
            raise ConfigurationError(f"--config {path}: {name} must be text or a number")
    return found
