"""Operating on groups and looking at the log from outside, without joining as a member.

In: a connection. Out: groups paused, moved, migrated (`group_admin`, `positions`, `migration`),
and what there is: the world read once (`world_reader`), counted (`world_summary`), followed
(`live_world`, `event_stream`); its past (`log_replay`, `cell_history`, `log_verification`); its
snapshots (`snapshot_reader`, `snapshot_writer`, `log_trimming`); the cluster under it
(`cluster_facts`, `cluster_checks`, `topic_review`). The command line and the dashboard stand on it.
"""
