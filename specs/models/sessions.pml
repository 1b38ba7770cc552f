/* What a session renews without wanting it: two cells, no clocks (PROTOCOL.md §5.5, §5.7, §5.12).
 *
 * Written from the specification alone. A heartbeat renews all that the log gives to its instance.
 * So a claim that is accepted after it was given up, or a cell whose release got lost, stays held
 * for as long as the instance lives, unless its client compares what the log gives it with what it
 * has. Here users want cells and give them up at any moment, clients crash and start anew under
 * their name, take over whatever looks stale, and each record on its way arrives late or never.
 * Then it becomes calm: users want what they want, nobody crashes, every record arrives, and what
 * looks stale is: the cells of instances that have crashed.
 *
 * Clients read at once: how late they read is the business of claims.pml. What would be rejected is
 * dropped, as there. Heartbeats are no records here: those of live instances arrive, and renew.
 *
 * Checked: once it is calm, it comes to that every cell that somebody wants is held by a client that
 * wants it and knows, and no live instance holds anything else. Each mutation (-D...) leaves out one
 * rule, and the checker must find a history after which that never comes (see check.py).
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#define CELLS 2

#define NONE 0
#define CLAIM 1
#define RELEASE 2

typedef Client {
	bit wants[CELLS];
	bit ours[CELLS];	/* it was told that it holds, and has not given up */
	unsigned out : 2;	/* the kind of the record on its way */
	unsigned cell : 1;
	bit old			/* of an earlier instance of its client */
};

byte holder[CELLS];		/* client + 1 */
bit former[CELLS];		/* that is an earlier instance of its client */
bit calm;
Client c[CLIENTS];

#define forget(x) c[x].out = NONE; c[x].cell = 0; c[x].old = 0
#define given(x, k) (holder[k] == x + 1 && !former[k])
#ifdef OTHER_INSTANCE
#define renewed(k) true		/* its client lives, though not the instance */
#else
#define renewed(k) (!former[k])
#endif
#define looks_stale(k) (!calm || !renewed(k))
#define claimable(x, k) (holder[k] == 0 || (!given(x, k) && looks_stale(k)))

inline send(x, kind, k) {
	c[x].out = kind;
	c[x].cell = k
}

/* A record was accepted for cell k: what is in flight for it will be rejected. */
inline outdate(k) {
	n = 0;
	do
	:: n < CLIENTS ->
		if
		:: c[n].out != NONE && c[n].cell == k -> forget(n)
		:: else
		fi;
		c[n].ours[k] = 0;
		n++
	:: else -> n = 0; break
	od
}

inline arrive(x) {
	k = c[x].cell;
	if
	:: c[x].out == CLAIM ->
		holder[k] = x + 1;
		former[k] = c[x].old;
		outdate(k);
		c[x].ours[k] = (!former[k] && c[x].wants[k])
	:: else ->
		holder[k] = 0;
		former[k] = 0;
		outdate(k)
	fi;
	k = 0
}

/* The user changes its mind. */
inline turn(x, k) {
	c[x].wants[k] = !c[x].wants[k];
	if
	:: c[x].ours[k] && c[x].out == NONE -> send(x, RELEASE, k)
	:: else
	fi;
	c[x].ours[k] = 0
}

inline restart(x) {
	c[x].old = (c[x].out != NONE);
	do
	:: n < CELLS ->
		c[x].ours[n] = 0;
		former[n] = (holder[n] == x + 1 -> 1 : former[n]);
		n++
	:: else -> n = 0; break
	od
}

/* With each heartbeat: what the log gives and the client does not have, it releases, or takes if it
 * wants it by now. */
inline reconcile(x, k) {
	if
	:: c[x].wants[k] -> c[x].ours[k] = 1
	:: else -> send(x, RELEASE, k)
	fi
}
#ifdef NO_RECONCILE
#define reconciles(x, k) false
#else
#define reconciles(x, k) (given(x, k) && !c[x].ours[k] && c[x].out == NONE)
#endif

#define free_to_send(x) (c[x].out == NONE)
#define in_doubt(x) (!calm || (c[x].out == CLAIM && holder[c[x].cell] && !former[c[x].cell]))
#define steps_of(x, k) \
	:: d_step { c[x].wants[k] && !c[x].ours[k] && free_to_send(x) && claimable(x, k) -> \
		send(x, CLAIM, k); skip } \
	:: d_step { reconciles(x, k) -> reconcile(x, k); skip } \
	:: d_step { !calm -> turn(x, k); skip }
#define steps(x) \
	steps_of(x, 0) \
	steps_of(x, 1) \
	:: d_step { c[x].out != NONE -> arrive(x); skip } \
	:: d_step { c[x].out != NONE && in_doubt(x) -> forget(x); skip }	/* lost or rejected */ \
	:: d_step { !calm -> restart(x); skip }

init {
	unsigned n : 2;
	unsigned k : 1;
	do
	:: d_step { !calm -> calm = 1; skip }
	steps(0)
	steps(1)
#if CLIENTS == 3
	steps(2)
#endif
	od
}

#if CLIENTS == 3
#define wanted(k) (c[0].wants[k] || c[1].wants[k] || c[2].wants[k])
#define enjoyed(k) (c[0].ours[k] || c[1].ours[k] || c[2].ours[k])
#else
#define wanted(k) (c[0].wants[k] || c[1].wants[k])
#define enjoyed(k) (c[0].ours[k] || c[1].ours[k])
#endif
/* `ours` implies that the client wants the cell and that the log gives it. */
#define settled(k) ((wanted(k) && enjoyed(k)) || \
	(!wanted(k) && !enjoyed(k) && (holder[k] == 0 || former[k])))

ltl heals { [] (calm -> <> [] (settled(0) && settled(1))) }
