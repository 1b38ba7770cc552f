"""Operating on groups and looking at the log from outside, without joining as a member.

In: a connection. Out: groups paused, moved, migrated (`group_admin`, `positions`, `migration`),
and what there is: the world read once (`world_reader`), counted (`world_summary`), its past
(`log_replay`, `cell_timeline`). The command line and the dashboard stand on it.
"""
