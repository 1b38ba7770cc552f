"""The dashboard: a web page of the coordination log, live and at any moment of the past.

It needs the extra `dashboard`. `marshal dashboard` serves it; `create_app` is for whoever wants to
mount it in an application of their own. It takes no part in coordination: it reads.

How it is built, from the log to the page:

- `log_follower.LogFollower` follows the log in a thread, with the project's own fold;
- `live_state.LiveState` turns what was folded into a `cell_grid.CellGrid`, `RecentClaims`, alerts
  and the activity stream (no I/O);
- `app.create_app` sends the grid once to each page (`subscribers`) and then what changes, as
  server-sent events;
- `replay.Replay` replays the log up to a moment, for the page's time bar;
- `guard.Guard` keeps strangers and other sites out;
- `static/` is the page: plain HTML, CSS and ES modules.
"""
