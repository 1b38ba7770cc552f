"""Bugs that break a promise of GUARANTEES.md which nothing in the other lists breaks.

`tests.mutation.guarantees` tries each with the test that the promise names. Most of these start
real servers, so no campaign of `tests.mutation` tries them.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["PROMISES"]


def _p(name: str, module: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(f"promise: {name}", module, tuple(Edit(*edit) for edit in edits))


PROMISES: tuple[Mutant, ...] = (
    _p(
        "two intervals of silence, and not one",
        "marshal_py.protocol.claimant",
        (
            "Claimant._may_take",
            "silence_ns > 2 * cell.interval_ms * MS",
            "silence_ns > cell.interval_ms * MS",
        ),
        (  # and when it looks again
            "Claimant._consider",
            "now_ns + 2 * cell.interval_ms * MS - silence_ns + 1",
            "now_ns + cell.interval_ms * MS - silence_ns + 1",
        ),
    ),
    _p(
        "candidates of one name stand in one election",
        "marshal_py.client.leader_election",
        (
            "Leadership.__init__",
            "leader_topic(name)",
            "leader_topic(f'{name}.{registry.driver.settings.client_id}')",
        ),
    ),
    _p(
        "a deposed leader is told",
        "marshal_py.client.leader_election",
        ("Leadership.campaign_steps", 'claim.on_lost = self._relay("on_lost")', "pass"),
    ),
    _p(
        "no partition is worked on that was not granted",
        "marshal_py.protocol.migration",
        (
            "Grants.withholds",
            "bridge is not None and self._grant(bridge, topic, partition) is None",
            "False",
        ),
        (
            "Grants.until_ns",
            "self._known.pop((topic, partition), None)\n            return 0",
            "self._known.pop((topic, partition), None)\n            return UNLIMITED_NS",
        ),
    ),
    _p(
        "what stopped `run` is not done",
        "marshal_py.consumer.handlers.retries",
        ("Retries._hand_back", "self._tasks.abandon(task)", "self._tasks.done(task)"),
    ),
    _p(
        "a dead letter is awaited",
        "marshal_py.consumer.handlers.retries",
        (
            "Retries._give_up",
            'if verdict == "dead_letter" and not self._bury(item, error, task):',
            'if verdict == "dead_letter" and False:',
        ),
    ),
    _p(
        "no handler is started without a lease",
        "marshal_py.consumer.handlers.tasks",
        ("Tasks.take", "part.claim.held and not is_paused", "not is_paused"),
    ),
    _p(
        "a lapsed lease ends nothing",
        "marshal_py.consumer.handlers.runner",
        (
            "Runner._look_after_partitions",
            "core_of(part.claim).ended.is_set() or",
            "core_of(part.claim).ended.is_set() or self._tasks.runs_of(part) or",
        ),
    ),
    _p(
        "what is finished last counts, too",
        "marshal_py.consumer.handlers.tasks",
        (
            "Tasks.done",
            "if not self._core.delivery.claims_messages:",
            "if not self._core.delivery.claims_messages and self.schedule.count > 1:",
        ),
    ),
    _p(
        "a partition that goes waits for what runs of it",
        "marshal_py.consumer.handlers.runner",
        ("Runner.busy_with", "if self._tasks.runs_of(part):", "if False:"),
        (
            "Runner.busy_with",
            "return self._parts.get(part.key) is part and",
            "return False and",
        ),
    ),
    _p(
        "what waits is bounded in bytes",
        "marshal_py.consumer.handlers.schedule",
        ("Schedule.has_room", " and self.bytes < share * self.max_bytes", ""),
    ),
    _p(
        "how far `run` gets ahead is bounded",
        "marshal_py.consumer.handlers.runner",
        ("Runner._throttle", "elif ahead > options.max_ahead or (", "elif ("),
    ),
    _p(
        "a seek is in the log",
        "marshal_py.consumer.partitions",
        (
            "Partitions.seek",
            "            part.reset_to = offset  #",
            "            #",
        ),
    ),
    _p(
        "of two runs after one commit one counts",
        "marshal_py.spark.audit_store",
        ("Store._create", "return False", "return True"),
    ),
    _p(
        "a driver whose cluster is gone says so",
        "marshal_py.spark.watch",
        ("_Watch._run", "self.lost = True", "pass"),
    ),
    _p(
        "a query that goes on begins where the last batch ended",
        "marshal_py.spark.source",
        ("ClaimedReader.commit", 'claim.commit(entry["offset"]', 'claim.commit(entry["from"]'),
    ),
    _p(
        "at least once, a task that is tried again has its records",
        "marshal_py.spark.source",
        ("ClaimedReader.read", "if self.options.at_most_once:", "if True:"),
        ("ClaimedReader.read", "raise ConfigurationError(SPECULATION)", "pass"),
    ),
    _p(
        "at most once, the first attempt alone has records",
        "marshal_py.spark.source",
        (
            "ClaimedReader.read",
            "if context is not None and context.attemptNumber() > 0:",
            "if False:",
        ),
    ),
    _p(
        "nothing is claimed before speculation is refused",
        "marshal_py.spark.source",
        (
            "ClaimedReader.__init__",
            "self._probed = not options.at_most_once",
            "self._probed = True",
        ),
    ),
    _p(
        "an outbox has one configuration",
        "harvest.core.source",
        ("registration_problem", "return None if not differing else", "return None if True else"),
    ),
    _p(
        "a switch leaves nothing that was published",
        "harvest.runtime.registration",
        (
            "_carry_over",
            "_delete_published(old, positions, dry_run=dry_run)",
            "_delete_published(old, positions, dry_run=True)",
        ),
    ),
    _p(
        "a bomb in a file is no traceback",
        "marshal_py.admin.connection",
        ("_yaml", "(yaml.YAMLError, ValueError, RecursionError)", "(yaml.YAMLError, ValueError)"),
    ),
    _p(
        "what is read of files is text or numbers",
        "marshal_py.admin.connection",
        (
            "read_config_file",
            "(OSError, UnicodeDecodeError) as error",
            "OSError as error",
        ),
    ),
    _p(
        "no right on a group is needed",
        "marshal_py.client.log_reader",
        (
            "LogReader._on_error",
            "if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:",
            "if False:",
        ),
    ),
    _p(
        "a missing right is named with its command",
        "marshal_py.client.acl",
        ("denied_on", 'command += ["--operation", operation]', "pass"),
    ),
    _p(
        "settings show no password",
        "marshal_py.client.settings",
        ("ClientSettings", "kafka: KafkaConfig = field(repr=False)", "kafka: KafkaConfig"),
    ),
    _p(
        "a stranger's heartbeat makes no session",
        "marshal_py.protocol.rationalizer",
        ("_heartbeat", "if record.membership != 1:", "if False:"),
    ),
    _p(
        "a refused claim makes no cell",
        "marshal_py.protocol.rationalizer",
        (
            "_claim",
            "else group.cells.get(unit)",
            "else group.cells.setdefault(unit, Cell(unit))",
        ),
    ),
)
