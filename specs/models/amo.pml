/* Messages claimed at most once: one cell, two consumers, no clocks (PROTOCOL.md §5.11).
 *
 * Written from the specification alone. Nobody ever knows whether its lease stands: each claims the
 * cell whenever it likes, goes on under an epoch that was lost long ago, gives up waiting for an
 * answer at any moment, and crashes; records arrive late or never. What is left is the log.
 *
 * Heartbeats are not here: to messages, they matter as little as leases. All that one can do is make
 * a claim of the cell stale, which is as if that were lost. Nor does anybody set a position, end the
 * cell or forget the group, which takes the promise back on purpose.
 *
 * Histories are of any length, as in claims.pml: what would be rejected is dropped, what both have
 * read is forgotten, and at most UNREAD accepted records may lie unread. (A consumer that waits for
 * the answer to a record that was dropped gives up, as it may at any time.)
 *
 * Checked: no message is delivered twice, whatever happens. Each mutation (-D...) leaves out one
 * rule, and the checker must find a message that is (see check.py).
 */

#ifndef MESSAGES
#define MESSAGES 3		/* batches are of one or two */
#endif
#ifndef UNREAD
#define UNREAD 3
#endif

#define NONE 0
#define CLAIM 1			/* ClaimingPartition */
#define TAKE 2			/* ClaimingMessages */

typedef Record {
	unsigned kind : 2;
	bit who;
	bit old;		/* its sender does not wait for it any more */
	unsigned upto : 3	/* TAKE: all messages below */
};

typedef Client {
	unsigned read : 3;	/* how many of the records in `log` it has read */
	unsigned claimed : 3;	/* by its fold: all messages below are claimed */
	bit holds;		/* it has read that its claim was accepted; it never looks again */
	unsigned next : 3;	/* the next message that it fetches */
	unsigned upto : 3;	/* it waits for the answer about next .. upto - 1; 0: for none */
	Record out;		/* on its way to the log */
	Record late		/* given up, and overtaken by `out`: another producer's */
};

Record log[UNREAD];
unsigned length : 3;
unsigned owner : 2;		/* by the whole log: client + 1 */
unsigned claimed : 3;		/* by the whole log */
Client c[2];
bit delivered[MESSAGES];

#define forget(r) r.kind = NONE; r.who = 0; r.old = 0; r.upto = 0

#ifdef NO_EPOCH
#define same_epoch(x) true
#else
#define same_epoch(x) (owner == x + 1)
#endif
#ifdef NOT_AHEAD
#define ahead(r) true
#else
#define ahead(r) (r.upto > claimed)
#endif
#ifdef ANY_ANSWER
#define the_answer(r) true
#else
#define the_answer(r) !r.old
#endif

inline deliver(x) {
	do
	:: c[x].next < c[x].upto ->
		assert(!delivered[c[x].next]);
		delivered[c[x].next] = 1;
		c[x].next++
	:: else -> c[x].upto = 0; break
	od
}

/* What is on its way is not waited for any more. */
inline give_up(x) {
	c[x].upto = 0;
	c[x].next = c[x].claimed;
	if
	:: c[x].out.kind == NONE
	:: c[x].out.kind != NONE -> c[x].out.old = 1
	:: c[x].out.kind != NONE && c[x].late.kind == NONE ->
		c[x].late.kind = c[x].out.kind;
		c[x].late.upto = c[x].out.upto;
		forget(c[x].out)
	fi;
	n = c[x].read;
	do
	:: n < length ->
		log[n].old = (log[n].who == x -> 1 : log[n].old);
		n++
	:: else -> n = 0; break
	od
}

inline drop_if(condition, r) {
	if
	:: condition -> forget(r)
	:: else
	fi
}

/* What has become wrong on its way: a claim that names the version before, a message claim of an
 * epoch that is over, or that is not ahead. `claims` is x + 1 if x has just claimed the cell: its
 * own message claims on their way are of an epoch before. */
#define wrong(x, r) (r.kind == CLAIM || (r.kind == TAKE && ((over(x)) || !ahead(r))))
#ifdef NO_EPOCH
#define over(x) false
#else
#define over(x) (!same_epoch(x) || claims == x + 1)
#endif

inline arrive(x, r, is_old) {
	log[length].kind = r.kind;
	log[length].who = x;
	log[length].old = is_old;
	log[length].upto = r.upto;
	if
	:: r.kind == CLAIM -> owner = x + 1; claims = x + 1
	:: else -> claimed = r.upto
	fi;
	length++;
	forget(r);
	drop_if(wrong(0, c[0].out), c[0].out);
	drop_if(wrong(1, c[1].out), c[1].out);
	drop_if(wrong(0, c[0].late), c[0].late);
	drop_if(wrong(1, c[1].late), c[1].late);
	claims = 0
}

inline fold(x) {
	n = c[x].read;
	c[x].read++;
	if
	:: log[n].kind == CLAIM && log[n].who == x && !log[n].old ->
		c[x].holds = 1;
		c[x].upto = 0;
		c[x].next = c[x].claimed
	:: log[n].kind == TAKE ->
		c[x].claimed = log[n].upto;
		if
		:: log[n].who == x && the_answer(log[n]) && c[x].upto -> deliver(x)
		:: else
		fi
	:: else
	fi;
	n = 0
}

inline trim() {
	do
	:: c[0].read > 0 && c[1].read > 0 ->
		do
		:: n + 1 < length ->
			log[n].kind = log[n + 1].kind;
			log[n].who = log[n + 1].who;
			log[n].old = log[n + 1].old;
			log[n].upto = log[n + 1].upto;
			n++
		:: else -> break
		od;
		forget(log[n]);
		n = 0;
		length--;
		c[0].read--;
		c[1].read--
	:: else -> break
	od
}

/* Whether a claim of this client lies unread: what it writes belongs to an epoch that is over. */
inline unread_claim(x) {
	n = c[x].read;
	found = 0;
	do
	:: n < length -> found = (log[n].kind == CLAIM -> 1 : found); n++
	:: else -> n = 0; break
	od
}

inline step(x) {
	if
	:: c[x].out.kind == NONE && !c[x].upto && c[x].read == length -> c[x].out.kind = CLAIM
	:: c[x].out.kind == NONE && c[x].holds && !c[x].upto && c[x].next < MESSAGES ->
		c[x].upto = c[x].next + 1;
		if
		:: c[x].upto < MESSAGES -> c[x].upto++
		:: true
		fi;
		c[x].out.kind = TAKE;
		c[x].out.upto = c[x].upto;
		unread_claim(x);
#ifndef NO_EPOCH
		drop_if(found || !same_epoch(x), c[x].out);
#endif
		found = 0;
		drop_if(c[x].out.kind == TAKE && !ahead(c[x].out), c[x].out);
#ifdef DELIVER_EARLY
		deliver(x)
#endif
	/* the record arrives, or is lost */
	:: c[x].out.kind != NONE && length < UNREAD -> arrive(x, c[x].out, c[x].out.old)
	:: c[x].late.kind != NONE && length < UNREAD -> arrive(x, c[x].late, 1)
	:: c[x].out.kind != NONE -> forget(c[x].out)
	:: c[x].late.kind != NONE -> forget(c[x].late)
	:: c[x].read < length -> fold(x)
	/* no answer in time */
	:: c[x].upto -> give_up(x)
	/* crash, and start under the same name, from the end of the log: what is on its way may
	 * still arrive */
	:: give_up(x);
		c[x].holds = 0;
		c[x].read = length;
		c[x].claimed = claimed;
		c[x].next = 0
	fi
}

init {
	unsigned n : 3;
	unsigned claims : 2;
	bit found;
	do
	:: atomic {
		if
		:: step(0)
		:: step(1)
		fi;
		trim()
	}
	od
}
