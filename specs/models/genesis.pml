/* The identity of a log and the base of its epochs (PROTOCOL.md §4.5, §5.16, §7.4 and §7.5).
 *
 * Written from the specification alone. Two clients found logs and claim one cell, operators recover
 * the log, and the topic is deleted and made anew, at any moment; records arrive late or never, and
 * claims also in the topic that was made since. A client knows the log as it was when it last read.
 * An operator's clock may be a tick behind; that of the first client of a log is right, as the log
 * has nothing to compare with. In one tick, a log gets fewer than OFFSETS records.
 *
 * Checked: who starts to act does so under an epoch that is larger than any before, in whatever
 * topic; and a genesis that is written into a log without one ends nobody's claim. Each mutation
 * (-D...) leaves out one rule, and the checker must find a violation (see check.py).
 */

#ifndef TICKS
#define TICKS 3
#endif
#define OFFSETS 4		/* in a log, at most */
#define CLIENTS 2

#define NONE 0
#define CLAIM 1
#define GENESIS 2

typedef Client {
	byte identity;		/* of the log that it reads; 0: it has none */
	byte epoch;		/* under which it acts; 0: it does not */
	byte out;		/* the kind of its record on its way */
	byte previous;		/* its genesis names this identity */
	byte base
};

byte now = 1;
byte next;			/* the offset of the next record */
byte identity;			/* the log's; each is a new number */
byte base;
byte holder;			/* client + 1 */
byte epoch;			/* of the cell */
byte last;			/* the largest epoch that anybody has acted under */
byte given;			/* identities that were given out */
Client c[CLIENTS];

#ifdef CLAIM_FIRST
#define founded(x) true
#else
#define founded(x) (c[x].identity != 0)	/* as x has read it */
#endif
#ifdef NO_COMPARE
#define names_it(x) true
#else
#define names_it(x) (c[x].previous == identity)
#endif
#ifdef ANY_BASE
#define is_larger(x) true
#else
#define is_larger(x) (identity == 0 || c[x].base > base)
#endif
#ifdef KEEP_CLAIMS
#define of_this_log true
#else
#define of_this_log (epoch >= base)
#endif

#define forget(x) c[x].out = NONE; c[x].previous = 0; c[x].base = 0

/* A claim was written when its sender saw the cell as it is: what came between made it stale. */
inline outdate() {
	c[0].out = (c[0].out == CLAIM -> NONE : c[0].out);
	c[1].out = (c[1].out == CLAIM -> NONE : c[1].out)
}

inline arrive(x) {
	if
	:: c[x].out == CLAIM ->
		holder = x + 1;
		epoch = base + next;
		forget(x);
		outdate()
	:: c[x].out == GENESIS && names_it(x) && is_larger(x) ->
		assert(c[x].previous != 0 || holder == 0 || identity == 0);
		given++;
		identity = given;
		base = c[x].base;
		forget(x)
	:: else -> forget(x)
	fi;
	next++
}

/* Reads all there is. What was claimed before the last genesis is given up. */
inline read(x) {
	c[x].identity = identity;
	if
	:: holder == x + 1 && founded(x) && of_this_log && c[x].epoch != epoch ->
		assert(epoch > last);
		c[x].epoch = epoch;
		last = epoch
	:: holder == x + 1 && founded(x) && of_this_log && c[x].epoch == epoch
	:: else -> c[x].epoch = 0
	fi
}

inline write(x, previous_, base_) {
	c[x].out = GENESIS;
	c[x].previous = previous_;
	c[x].base = base_
}

/* The topic is deleted and made anew. A genesis on its way is lost with it, but not a claim. */
inline make_anew() {
	next = 0;
	identity = 0;
	base = 0;
	holder = 0;
	epoch = 0;
	now++;
	if
	:: c[0].out == GENESIS -> forget(0)
	:: else
	fi;
	if
	:: c[1].out == GENESIS -> forget(1)
	:: else
	fi
}

#define idle(x) (c[x].out == NONE)
#define steps(x) \
	:: d_step { idle(x) && founded(x) && c[x].identity == identity -> c[x].out = CLAIM; skip } \
	/* the first client, by its clock */ \
	:: d_step { idle(x) && c[x].identity == 0 -> write(x, 0, OFFSETS * now); skip } \
	/* an operator, by a clock that is right or behind */ \
	:: d_step { idle(x) && c[x].identity -> write(x, c[x].identity, OFFSETS * now); skip } \
	:: d_step { idle(x) && c[x].identity && now > 1 -> \
		write(x, c[x].identity, OFFSETS * (now - 1)); skip } \
	:: d_step { c[x].out != NONE && next < OFFSETS -> arrive(x); skip } \
	:: d_step { c[x].out != NONE -> forget(x); skip } \
	:: d_step { true -> read(x); skip }

init {
	do
	:: d_step { now < TICKS -> now++; skip }
	:: d_step { now < TICKS -> make_anew(); skip }
	steps(0)
	steps(1)
	od
}
