/* Claims, sessions, leases and drifting clocks (PROTOCOL.md §4.5 and §5): one cell in full, and any
 * number of others, of which only this shows: heartbeats renew a session at any moment, whether it
 * holds this cell or not.
 *
 * Written from the specification alone; shares nothing with the code. At any moment, in any order:
 * a client writes a record; the record arrives in the log, late or never, and a heartbeat before or
 * after a claim or release that was written at another time; a client reads the next record, late
 * (one that does nothing is a paused one, a zombie when it goes on); a client crashes and starts
 * anew under its name; time passes. A client's clock may fall one tick behind true time and catch
 * up again, so two spans measured on two clocks differ by at most two ticks.
 *
 * Histories are of any length. That the states are finite comes of three things:
 * - Time is kept as ages and remainders, which stop at the value from which on they make no
 *   difference; there is no absolute clock.
 * - What an offset is compared for is kept instead of the offset. "expected_version = version" says
 *   that nothing was accepted for the cell since the sender's view, nor a heartbeat of its holder's
 *   session: the claim in flight is dropped when something is. "epoch = the cell's" says that no
 *   claim was accepted since: the release in flight is dropped likewise. A heartbeat compares
 *   nothing: it counts for the cell if the cell is its instance's when it arrives.
 * - Records that change nothing for the cell do not enter the log here, and the log forgets what
 *   all have read. At most UNREAD accepted records may lie unread.
 *
 * With CLIENTS=3, UNREAD=1 is what can be explored whole in half a minute.
 *
 * Checked: never may two clients act. Each mutation (-D...) leaves out one rule, and the checker
 * must find two actors (see check.py).
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef UNREAD
#define UNREAD 2
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
	unsigned who : 2;
	bit old;		/* of an earlier instance of its client */
	unsigned age : 3	/* on the sender's clock, up to LEASE: from then on it gives no lease */
};

typedef Client {
	bit behind;		/* its clock is one tick late */
	unsigned read : 2;	/* how many of the records in `log` it has read */
	unsigned holder : 2;	/* by its fold: 0 for nobody, else client + 1 */
	bit mine;		/* by its fold, this instance holds */
	unsigned quiet : 3;	/* ticks since it saw the version change, up to WAIT + 1 */
	bit ours;		/* this instance holds, by its fold, and means to */
	bit resumable;		/* it started as this holder's next instance (§5.8) */
	unsigned lease : 3;	/* ticks that are left of its lease */
	Record out;		/* a claim or release on its way to the log */
	Record beat;		/* a heartbeat on its way to the log */
	unsigned named : 2	/* with NO_OWN_VERSION, the client whose session its claim names */
};

Record log[UNREAD];
unsigned length : 2;
unsigned holder : 2;		/* by the whole log */
bit former;			/* that is an earlier instance of its client */
Client c[CLIENTS];

#define acts(x) (c[x].ours && c[x].lease > 0)
#define claimable(x) (c[x].holder == 0 || c[x].resumable || (c[x].mine && !c[x].ours) || \
	(!c[x].mine && c[x].quiet > WAIT))

#define forget(r) r.kind = NONE; r.who = 0; r.old = 0; r.age = 0
#define copy(to, from) to.kind = from.kind; to.who = from.who; to.old = from.old; to.age = from.age

/* `found`: how many of the records that x has not read make a claim stale that it writes now. */
#if defined(NO_SESSION_VERSION)
#define counts(x) (log[n].kind != BEAT)
#else
#define counts(x) true
#endif
inline look(x) {
	n = c[x].read;
	do
	:: n < length -> found = (counts(x) -> found + 1 : found); n++
	:: else -> n = 0; break
	od
}

/* A record was accepted: what is in flight and names what was before will be rejected. */
#if defined(NO_SESSION_VERSION)
#define outdated(accepted, by) (accepted != BEAT)
#elif defined(NO_OWN_VERSION)
#define outdated(accepted, by) (accepted == BEAT && c[n].named == by + 1)
#else
#define outdated(accepted, by) true
#endif
#ifdef NO_EPOCH
#define over(accepted) false
#else
#define over(accepted) (accepted != BEAT)
#endif
inline outdate(accepted, by) {
	n = 0;
	do
	:: n < CLIENTS ->
		if
		:: c[n].out.kind == CLAIM && outdated(accepted, by) -> forget(c[n].out); c[n].named = 0
		:: c[n].out.kind == RELEASE && over(accepted) -> forget(c[n].out)
		:: else
		fi;
		n++
	:: else -> n = 0; break
	od
}

inline append(r, by) {
	log[length].kind = r.kind;
	log[length].who = by;
	log[length].old = r.old;
	log[length].age = r.age;
	length++;
	forget(r)
}

/* The claim or release of x arrives. */
inline arrive(x) {
	kind = c[x].out.kind;
	if
#ifdef NO_OWN_VERSION
	:: kind == CLAIM && c[x].named != holder -> forget(c[x].out)
#endif
	:: else ->
		holder = (kind == CLAIM -> x + 1 : 0);
		former = (kind == CLAIM && c[x].out.old);
		append(c[x].out, x);
		outdate(kind, x)
	fi;
	c[x].named = 0;
	kind = 0
}

/* The heartbeat of x arrives, and renews what its instance holds now. */
#define its_own(x, r) (holder == x + 1 && former == r.old)
inline beat_arrives(x) {
	if
	:: its_own(x, c[x].beat) -> append(c[x].beat, x); outdate(BEAT, x)
#ifdef OTHER_INSTANCE
	:: holder == x + 1 && !its_own(x, c[x].beat) -> append(c[x].beat, x)
#endif
#ifdef ZOMBIE
	:: holder != x + 1 ->
		holder = x + 1;
		former = c[x].beat.old;
		append(c[x].beat, x);
		outdate(CLAIM, x)
#endif
	:: else -> forget(c[x].beat)
	fi
}

/* A heartbeat that finds nothing of its instance is dropped when that is sure. One of an instance
 * that has crashed could only make others wait, as if it were lost later; so it is, at once. */
#define claims(x) (c[x].out.kind == CLAIM && c[x].out.old == c[x].beat.old)
#if defined(ZOMBIE)
#define idle(x) false
#elif defined(OTHER_INSTANCE)
#define idle(x) (holder != x + 1 && !claims(x))
#else
#define idle(x) (c[x].beat.old || (!its_own(x, c[x].beat) && !claims(x)))
#endif
inline drop_idle(x) {
	if
	:: c[x].beat.kind == BEAT && idle(x) -> forget(c[x].beat)
	:: else
	fi
}

#ifdef FROM_READING
#define left_of_lease LEASE
#else
#define left_of_lease (LEASE - log[n].age)
#endif
inline renew(x) {
	c[x].lease = (left_of_lease > c[x].lease -> left_of_lease : c[x].lease)
}

inline lose(x) {
	c[x].ours = 0;
	c[x].lease = 0
}

#define is_mine(x) (log[n].who == x && !log[n].old)
#ifdef OTHER_INSTANCE
#define renews(x) (log[n].who == x)
#else
#define renews(x) is_mine(x)
#endif
inline fold(x) {
	n = c[x].read;
	c[x].read++;
	c[x].quiet = 0;
	if
	:: log[n].kind == CLAIM ->
		lose(x);
		c[x].holder = log[n].who + 1;
		c[x].resumable = 0;
		c[x].mine = is_mine(x);
		c[x].ours = is_mine(x)
	:: log[n].kind == RELEASE ->
		lose(x);
		c[x].holder = 0;
		c[x].resumable = 0;
		c[x].mine = 0
	:: log[n].kind == BEAT ->
#ifdef RENEW_AFTER_RELEASE
		c[x].ours = (is_mine(x) && c[x].mine -> 1 : c[x].ours);
#endif
#ifdef ZOMBIE
		if
		:: c[x].holder != log[n].who + 1 ->
			lose(x);
			c[x].holder = log[n].who + 1;
			c[x].mine = is_mine(x);
			c[x].ours = is_mine(x)
		:: else
		fi;
#endif
		skip
	fi;
	if
	:: log[n].kind != RELEASE && c[x].ours && renews(x) -> renew(x)
	:: else
	fi;
	n = 0
}

/* What all have read is forgotten; what its sender has read has no age any more. */
#if CLIENTS == 2
#define all_have_read (c[0].read > 0 && c[1].read > 0)
#else
#define all_have_read (c[0].read > 0 && c[1].read > 0 && c[2].read > 0)
#endif
inline trim() {
	do
	:: all_have_read ->
		do
		:: n + 1 < length -> copy(log[n], log[n + 1]); n++
		:: else -> break
		od;
		forget(log[n]);
		length--;
		n = 0;
		do
		:: n < CLIENTS -> c[n].read--; n++
		:: else -> n = 0; break
		od
	:: else -> break
	od;
	do
	:: n < length ->
		if
		:: log[n].old || c[log[n].who].read > n || log[n].kind == RELEASE -> log[n].age = 0
		:: else
		fi;
		n++
	:: else -> n = 0; break
	od
}

#define older(r, d) r.age = (r.old -> 0 : (r.age + d > LEASE -> LEASE : r.age + d))
#define counts_silence(x) (c[x].holder && !c[x].mine && !c[x].resumable)

/* The clock of x goes on by d ticks. */
inline elapse(x, d) {
	c[x].lease = (c[x].lease > d -> c[x].lease - d : 0);
	c[x].quiet = (!counts_silence(x) -> 0 : (c[x].quiet + d > WAIT -> WAIT + 1 : c[x].quiet + d));
	if
	:: c[x].out.kind == CLAIM -> older(c[x].out, d)
	:: else
	fi;
	if
	:: c[x].beat.kind == BEAT -> older(c[x].beat, d)
	:: else
	fi;
	n = c[x].read;
	do
	:: n < length ->
		if
		:: log[n].who == x && log[n].kind != RELEASE -> older(log[n], d)
		:: else
		fi;
		n++
	:: else -> n = 0; break
	od
}

/* True time goes on by a tick; the clock of x does (0), or falls behind or catches up (1). */
inline tick(x, slips) {
	if
	:: !slips -> elapse(x, 1)
	:: slips && !c[x].behind -> c[x].behind = 1
	:: slips && c[x].behind -> c[x].behind = 0; elapse(x, 2)
	fi
}

/* A crash, and a new instance that has read the whole log. */
inline restart(x) {
	do
	:: n < length ->
		if
		:: log[n].who == x -> log[n].old = 1; log[n].age = 0
		:: else
		fi;
		n++
	:: else -> n = 0; break
	od;
	c[x].out.old = (c[x].out.kind != NONE);
	c[x].out.age = 0;
	c[x].beat.old = (c[x].beat.kind != NONE);
	c[x].beat.age = 0;
	former = (holder == x + 1 -> 1 : former);
#ifdef NO_OWN_VERSION
	outdate(BEAT, x);	/* this session's version comes no more */
#endif
	lose(x);
	c[x].mine = 0;
	c[x].holder = holder;
	c[x].read = length;
	c[x].quiet = 0;
	c[x].resumable = (holder == x + 1)
}

/* Claims what is free, stale, or this client's own. */
inline claim(x) {
	look(x);
#ifdef NO_OWN_VERSION
	found = (c[x].holder && former -> 1 : found);	/* another session would have to be told apart */
#endif
	if
	:: found == 0 ->
		c[x].out.kind = CLAIM;
		c[x].out.who = x;
#ifdef NO_OWN_VERSION
		c[x].named = c[x].holder
#endif
	:: else
	fi;
	found = 0
}

/* Stops acting, then releases; again, if the release was lost; also what it does not want. */
inline release(x) {
#ifndef ACT_AFTER_RELEASE
	lose(x);
#endif
	n = c[x].read;
	do
	:: n < length -> found = (log[n].kind != BEAT); n = (found -> length : n + 1)
	:: else -> n = 0; break
	od;
	if
#ifndef NO_EPOCH
	:: found	/* would be rejected: the epoch is over */
#endif
	:: else -> c[x].out.kind = RELEASE; c[x].out.who = x
	fi;
	found = 0
}

inline check() {
	drop_idle(0);
	drop_idle(1);
#if CLIENTS == 3
	drop_idle(2);
	assert(!(acts(0) && acts(2)) && !(acts(1) && acts(2)));
#endif
	assert(!(acts(0) && acts(1)));
	trim();
	skip
}

#define room (length < UNREAD)
#define steps(x) \
	:: d_step { c[x].out.kind == NONE && !c[x].ours && claimable(x) -> claim(x); check() } \
	:: d_step { c[x].out.kind == NONE && c[x].mine -> release(x); check() } \
	:: d_step { c[x].beat.kind == NONE -> c[x].beat.kind = BEAT; c[x].beat.who = x; check() } \
	:: d_step { c[x].out.kind != NONE && room -> arrive(x); check() } \
	:: d_step { c[x].beat.kind != NONE && room -> beat_arrives(x); check() } \
	:: d_step { c[x].out.kind != NONE -> forget(c[x].out); c[x].named = 0; check() } \
	:: d_step { c[x].beat.kind != NONE -> forget(c[x].beat); check() } \
	:: d_step { c[x].read < length -> fold(x); check() } \
	:: d_step { true -> restart(x); check() }

init {
	unsigned kind : 2;
	unsigned n : 3;
	unsigned found : 3;
	do
#if CLIENTS == 2
	:: d_step { true -> tick(0, 0); tick(1, 0); check() }
	:: d_step { true -> tick(0, 1); tick(1, 0); check() }
	:: d_step { true -> tick(0, 0); tick(1, 1); check() }
	:: d_step { true -> tick(0, 1); tick(1, 1); check() }
#else
	:: d_step { true -> tick(0, 0); tick(1, 0); tick(2, 0); check() }
	:: d_step { true -> tick(0, 1); tick(1, 0); tick(2, 0); check() }
	:: d_step { true -> tick(0, 0); tick(1, 1); tick(2, 0); check() }
	:: d_step { true -> tick(0, 0); tick(1, 0); tick(2, 1); check() }
	:: d_step { true -> tick(0, 1); tick(1, 1); tick(2, 0); check() }
	:: d_step { true -> tick(0, 1); tick(1, 0); tick(2, 1); check() }
	:: d_step { true -> tick(0, 0); tick(1, 1); tick(2, 1); check() }
	:: d_step { true -> tick(0, 1); tick(1, 1); tick(2, 1); check() }
#endif
	steps(0)
	steps(1)
#if CLIENTS == 3
	steps(2)
#endif
	od
}
