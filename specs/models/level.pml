/* Levels: who works in a group can follow its level (PROTOCOL.md §4.5 and §5.15).
 *
 * Written from the specification alone. Two clients are upgraded and downgraded at any moment, in
 * any order, while operators set levels; each record arrives late or never. A client knows the log
 * as it was when it last read. Each claims a cell of its own: exclusion is the business of
 * claims.pml. A session whose client is silent for so long that others take its cells and it is a
 * member no more is gone from the state; its lease has been over for long then.
 *
 * Checked: who acts can follow the level that the group has by the whole log, and so can whoever a
 * heartbeat was accepted of. Each mutation (-D...) leaves out one rule, and the checker must find
 * somebody who cannot (see check.py).
 */

#define CLIENTS 2
#define LEVELS 3

#define NONE 0
#define BEAT 1
#define CLAIM 2

typedef Client {
	byte lowest;		/* what its version of the program can follow */
	byte highest;
	byte level;		/* the group's, as it has read */
	bit acts;
	byte out		/* the kind of its record on its way */
};

typedef Session {
	bit known;		/* it is in the state */
	bit beaten;		/* by a heartbeat: the levels are its client's word */
	bit holds;
	byte lowest;
	byte highest
};

byte level = 1;			/* by the whole log */
byte set;			/* a SetLevel on its way; 0: none */
Client c[CLIENTS];
Session s[CLIENTS];

#define within(r, l) (r.lowest <= l && l <= r.highest)
#ifdef JOIN_ANYWAY
#define takes_part(x) true
#else
#define takes_part(x) within(c[x], c[x].level)
#endif
#ifdef NO_JOIN_CHECK
#define heartbeat_counts(x) true
#else
#define heartbeat_counts(x) within(c[x], level)
#endif
#ifdef NO_FOLLOW_CHECK
#define follows(x) true
#else
#define follows(x) (!s[x].known || within(s[x], set))
#endif

inline remove(x) {
	s[x].known = 0;
	s[x].beaten = 0;
	s[x].holds = 0;
	s[x].lowest = 0;
	s[x].highest = 0;
	c[x].acts = 0
}

inline arrive(x) {
	if
	:: c[x].out == BEAT && heartbeat_counts(x) ->
		s[x].known = 1;
		s[x].beaten = 1;
		s[x].lowest = c[x].lowest;
		s[x].highest = c[x].highest
	:: c[x].out == CLAIM ->
		s[x].holds = 1;
		if
		:: !s[x].known ->	/* nobody has said yet what this instance can follow */
			s[x].known = 1;
#ifdef CLAIM_FOLLOWS_ALL
			s[x].lowest = 1;
			s[x].highest = LEVELS
#else
			s[x].lowest = level;
			s[x].highest = level
#endif
		:: else
		fi
	:: else
	fi;
	c[x].out = NONE
}

inline read(x) {
	c[x].level = level;
	c[x].acts = (s[x].holds && takes_part(x))
}

/* The next instance, of another version of the program: its program follows `from` to `to`. */
inline start(x, from, to) {
	remove(x);
	c[x].out = NONE;
	c[x].lowest = from;
	c[x].highest = to;
	c[x].level = level
}

inline check() {
	assert(!c[0].acts || within(c[0], level));
	assert(!c[1].acts || within(c[1], level));
	assert(!s[0].beaten || within(c[0], level));
	assert(!s[1].beaten || within(c[1], level))
}

#define idle(x) (c[x].lowest && c[x].out == NONE && takes_part(x))
#define steps(x) \
	:: d_step { true -> start(x, 1, 1); check() } \
	:: d_step { true -> start(x, 1, 2); check() } \
	:: d_step { true -> start(x, 2, 3); check() } \
	:: d_step { idle(x) -> c[x].out = BEAT; check() } \
	:: d_step { idle(x) -> c[x].out = CLAIM; check() } \
	:: d_step { c[x].out != NONE -> arrive(x); check() } \
	:: d_step { c[x].out != NONE -> c[x].out = NONE; check() } \
	:: d_step { c[x].lowest -> read(x); check() } \
	:: d_step { s[x].known -> remove(x); check() }
#define sets(l) \
	:: d_step { set == 0 -> set = l; check() }

init {
	do
	steps(0)
	steps(1)
	sets(1)
	sets(2)
	sets(3)
	:: d_step { set && follows(0) && follows(1) -> level = set; set = 0; check() }
	:: d_step { set -> set = 0; check() }	/* refused or lost */
	od
}
