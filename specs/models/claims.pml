/* Claims, leases and drifting clocks: one cell, two clients (PROTOCOL.md §4.5 and §5).
 *
 * Written from the specification alone; shares nothing with the code. At any moment, in any order:
 * a client writes a record; the record arrives in the log, late or never; a client reads the next
 * record, late (one that does nothing is a paused one); a client crashes and starts anew under its
 * name; time passes. A client's clock may fall one tick behind true time and catch up again, so two
 * spans measured on two clocks differ by at most two ticks.
 *
 * Histories are of any length. That the states are finite comes of three things:
 * - Time is kept as ages and remainders, which stop at the value from which on they make no
 *   difference; there is no absolute clock.
 * - What an offset is compared for is kept instead of the offset. "expected_version = version" says
 *   that nothing was accepted since the sender's view: the record in flight is dropped when
 *   something is. "epoch = the cell's" says that no claim was accepted since: likewise.
 * - Rejected records change nothing for anybody, so they do not enter the log here, and the log
 *   forgets what both have read. At most UNREAD accepted records may lie unread.
 *
 * Checked: never may both clients act. Each mutation (-D...) leaves out one rule, and the checker
 * must find two actors (see check.py).
 */

#ifndef UNREAD
#define UNREAD 3
#endif

#define INTERVAL 2
#ifdef NO_MARGIN
#define LEASE (2 * INTERVAL)
#else
#define LEASE (2 * INTERVAL - 1)
#endif
#ifdef SHORT_WAIT
#define WAIT INTERVAL
#else
#define WAIT (2 * INTERVAL)
#endif

#define NONE 0
#define CLAIM 1
#define BEAT 2
#define RELEASE 3

typedef Record {
	unsigned kind : 2;
	bit who;
	bit old;		/* of an earlier instance of its client */
	unsigned age : 3	/* on the sender's clock, up to LEASE */
};

typedef Client {
	bit behind;		/* its clock is one tick late */
	unsigned read : 3;	/* how many of the records in `log` it has read */
	unsigned holder : 2;	/* by its fold: 0 for nobody, else client + 1 */
	unsigned quiet : 3;	/* ticks since it saw the version change, up to WAIT + 1 */
	bit ours;		/* it holds, by its fold, and means to */
	bit resumable;		/* it started as this holder's next instance (§5.8) */
	unsigned lease : 3;	/* ticks that are left of its lease */
	Record out		/* on its way to the log */
};

Record log[UNREAD];
unsigned length : 3;
unsigned holder : 2;		/* as the whole log has it */
Client c[2];

#define acts(x) (c[x].ours && c[x].lease > 0)
#define caught_up(x) (c[x].read == length)
#define claimable(x) (c[x].holder == 0 || c[x].resumable || \
	(c[x].holder != x + 1 && c[x].quiet > WAIT))

#ifdef NO_CAS
#define view_is_current(x) true
#else
#define view_is_current(x) caught_up(x)
#endif

#define forget(r) r.kind = NONE; r.who = 0; r.old = 0; r.age = 0

inline write(x, k) {
	c[x].out.kind = k;
	c[x].out.who = x
}

/* A record in flight that would be rejected from now on. */
inline spoil(x) {
	if
#ifndef NO_CAS
	:: c[x].out.kind == CLAIM -> forget(c[x].out)
#endif
#ifndef NO_EPOCH
	:: kind != BEAT && (c[x].out.kind == BEAT || c[x].out.kind == RELEASE) -> forget(c[x].out)
#endif
	:: else
	fi
}

inline arrive(x) {
	kind = c[x].out.kind;
	log[length].kind = kind;
	log[length].who = x;
	log[length].old = c[x].out.old;
	log[length].age = c[x].out.age;
	length++;
	forget(c[x].out);
	if
	:: kind == RELEASE -> holder = 0
	:: else -> holder = x + 1	/* for BEAT it is so already, unless epochs are not compared */
	fi;
	spoil(1 - x);
	kind = 0
}

inline renew(x, r) {
	if
#ifdef FROM_READING
	:: c[x].lease = LEASE
#else
	:: LEASE > r.age && LEASE - r.age > c[x].lease -> c[x].lease = LEASE - r.age
	:: else
#endif
	fi
}

inline lose(x) {
	c[x].ours = 0;
	c[x].lease = 0
}

inline fold(x) {
	Record r;
	d_step {
		r.kind = log[c[x].read].kind;
		r.who = log[c[x].read].who;
		r.old = log[c[x].read].old;
		r.age = log[c[x].read].age;
		c[x].read++;
		c[x].quiet = 0;
		if
		:: r.kind == CLAIM ->
			c[x].holder = r.who + 1;
			c[x].resumable = 0;
			lose(x);
			if
			:: r.who == x && !r.old -> c[x].ours = 1; renew(x, r)
			:: else
			fi
		:: r.kind == BEAT ->
#ifdef NO_EPOCH
			c[x].holder = r.who + 1;
			if
			:: r.who != x -> lose(x)
			:: r.who == x && !r.old -> c[x].ours = 1
			:: else
			fi;
#endif
#ifdef RENEW_AFTER_RELEASE
			if
			:: r.who == x && !r.old -> c[x].ours = 1
			:: else
			fi;
#endif
			if
			:: r.who == x && !r.old && c[x].ours -> renew(x, r)
			:: else
			fi
		:: r.kind == RELEASE ->
			c[x].holder = 0;
			c[x].resumable = 0;
			lose(x)
		fi;
		forget(r)
	}
}

/* What both have read is forgotten; what its sender has read has no age any more. */
inline trim() {
	d_step {
		do
		:: c[0].read > 0 && c[1].read > 0 ->
			n = 0;
			do
			:: n + 1 < length ->
				log[n].kind = log[n + 1].kind;
				log[n].who = log[n + 1].who;
				log[n].old = log[n + 1].old;
				log[n].age = log[n + 1].age;
				n++
			:: else -> break
			od;
			forget(log[n]);
			length--;
			c[0].read--;
			c[1].read--
		:: else -> break
		od;
		n = 0;
		do
		:: n < length ->
			if
			:: log[n].old || c[log[n].who].read > n || log[n].kind == RELEASE -> log[n].age = 0
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0
	}
}

inline older(r, d) {
	r.age = (r.age + d > LEASE -> LEASE : r.age + d)
}

/* The clock of x goes on by d ticks. */
inline elapse(x, d) {
	d_step {
		c[x].lease = (c[x].lease > d -> c[x].lease - d : 0);
		c[x].quiet = (c[x].quiet + d > WAIT -> WAIT + 1 : c[x].quiet + d);
		if
		:: (c[x].out.kind == CLAIM || c[x].out.kind == BEAT) && !c[x].out.old -> older(c[x].out, d)
		:: else
		fi;
		n = c[x].read;
		do
		:: n < length ->
			if
			:: log[n].who == x && !log[n].old && log[n].kind != RELEASE -> older(log[n], d)
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0
	}
}

inline tick(x) {
	if
	:: elapse(x, 1)
	:: !c[x].behind -> c[x].behind = 1
	:: c[x].behind -> c[x].behind = 0; elapse(x, 2)
	fi
}

/* A crash, and a new instance that has read the whole log. */
inline restart(x) {
	d_step {
		n = 0;
		do
		:: n < length ->
			if
			:: log[n].who == x -> log[n].old = 1; log[n].age = 0
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		if
		:: c[x].out.kind != NONE -> c[x].out.old = 1; c[x].out.age = 0
		:: else
		fi;
		lose(x);
		c[x].holder = holder;
		c[x].read = length;
		c[x].quiet = 0;
		c[x].resumable = (holder == x + 1)
	}
}

inline step(x) {
	if
	/* claim what is free, stale, or an earlier instance's */
	:: c[x].out.kind == NONE && !c[x].ours && claimable(x) && view_is_current(x) -> write(x, CLAIM)
	/* renew: after the lease has lapsed too, to learn whether anybody took over */
	:: c[x].out.kind == NONE && c[x].ours && c[x].holder == x + 1 -> write(x, BEAT)
	/* stop acting, then release; again, if the release was lost */
	:: c[x].out.kind == NONE && c[x].holder == x + 1 && !c[x].resumable ->
#ifdef ACT_AFTER_RELEASE
		c[x].lease = c[x].lease;
#else
		lose(x);
#endif
		write(x, RELEASE)
	/* the record arrives, or is lost */
	:: c[x].out.kind != NONE && length < UNREAD -> arrive(x)
	:: c[x].out.kind != NONE -> forget(c[x].out)
	:: c[x].read < length -> fold(x)
	:: restart(x)
	fi
}

/* A heartbeat or release that was written on a view which lacks a later claim or release. */
inline outdated(x) {
#ifndef NO_EPOCH
	if
	:: c[x].out.kind == BEAT || c[x].out.kind == RELEASE ->
		n = c[x].read;
		do
		:: n < length && log[n].kind != BEAT -> forget(c[x].out); break
		:: n < length && log[n].kind == BEAT -> n++
		:: else -> break
		od;
		n = 0
	:: else
	fi
#else
	skip
#endif
}

init {
	unsigned kind : 2;
	unsigned n : 3;
	do
	:: atomic {
		if
		:: tick(0); tick(1)
		:: step(0)
		:: step(1)
		fi;
		outdated(0);
		outdated(1);
		trim();
		assert(!(acts(0) && acts(1)))
	}
	od
}
