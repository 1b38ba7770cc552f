/* Harvest's mark mode with transactions: one outbox, two harvesters (HARVEST.md §3 to §6).
 *
 * Written from the specification alone. Rows appear in the order of their ids, and all have one key.
 * Anybody may become leader at any time; a harvester goes on with what it was doing long after it
 * was deposed, abandons its term at any moment (a failure, a crash: the next opening is the same),
 * and does not learn what became of a commit. Histories are of any length; ROWS bounds the rows.
 *
 * Checked: each row is published once, after those before it; no row is deleted that was not
 * published. Each mutation (-D...) leaves out one rule (see check.py).
 */

#ifndef ROWS
#define ROWS 3
#endif
#define TERMS 10		/* enough for all that can be remembered at once */

typedef Row {
	bit there;
	bit gone;
	bit published;
	unsigned term : 4;	/* the tag: a term, 0 for none, and a batch in it */
	unsigned batch : 2
};

typedef Harvester {
	bit leads;		/* its lease stands, which a mark asks at the database */
	bit valid;		/* its producer was opened, and fenced by nobody since */
	unsigned pc : 2;	/* 0 must open, 1 must read the checkpoint, 2 must clear, 3 works */
	unsigned old_term : 4;	/* the checkpoint that it read */
	unsigned old_batch : 2;
	unsigned term : 4;
	unsigned marked : 2;	/* batches that it has marked, and that it knows to be committed */
	unsigned done : 2;
	byte known		/* two bits for each row: the batch in which it marked the row */
};

Row row[ROWS];
Harvester h[2];
unsigned saved_term : 4;	/* the checkpoint: all of this term up to this batch is published */
unsigned saved_batch : 2;
unsigned appeared : 3;

#define knows(x, r) ((h[x].known >> (2 * (r))) & 3)

#ifdef MARK_LATE
#define may_mark(x) true
#else
#define may_mark(x) h[x].leads
#endif
#ifdef NO_FENCE
#define may_commit(x) true
#else
#define may_commit(x) h[x].valid
#endif

inline delete(r) {
	assert(row[r].published);
	row[r].gone = 1;
	row[r].term = 0;
	row[r].batch = 0
}

inline abandon(x) {
	h[x].pc = 0;
	h[x].valid = 0;
	h[x].old_term = 0;
	h[x].old_batch = 0;
	h[x].term = 0;
	h[x].marked = 0;
	h[x].done = 0;
	h[x].known = 0
}

/* A term is a large random number: one that nobody remembers. */
inline new_term(x) {
	t = 1;
	do
	:: t == saved_term || t == h[1 - x].term || t == h[1 - x].old_term || t == row[0].term ||
	   t == row[1].term || t == row[ROWS - 1].term -> t++
	:: else -> break
	od;
	assert(t < TERMS);
	h[x].term = t;
	t = 0
}

inline clear(x) {
	r = 0;
	do
	:: r < ROWS ->
		if
		:: row[r].there && !row[r].gone && h[x].old_term && row[r].term == h[x].old_term &&
		   row[r].batch <= h[x].old_batch -> delete(r)
		:: else
		fi;
		r++
	:: else -> r = 0; break
	od;
	h[x].old_term = 0;
	h[x].old_batch = 0
}

/* Tag one or more of the lowest rows that are not ours. */
inline mark(x) {
	h[x].marked++;
	r = 0;
	do
	:: r < ROWS ->
		if
		:: row[r].there && !row[r].gone && row[r].term != h[x].term ->
			row[r].term = h[x].term;
			row[r].batch = h[x].marked;
			if
			:: !knows(x, r) -> h[x].known = h[x].known | (h[x].marked << (2 * r))
			:: else
			fi;
			if
			:: true
			:: r = ROWS - 1
			fi;
			t = 1
		:: else
		fi;
		r++
	:: else -> r = 0; break
	od;
	h[x].marked = (t -> h[x].marked : h[x].marked - 1);	/* there was none */
	t = 0
}

/* What the broker does when it commits the next batch: rows and checkpoint, or nothing. */
inline commit(x) {
	r = 0;
	do
	:: r < ROWS ->
		if
		:: knows(x, r) == h[x].done + 1 ->
			assert(!row[r].published);
			assert(r == 0 || row[(r == 0 -> 0 : r - 1)].published);
			row[r].published = 1
		:: else
		fi;
		r++
	:: else -> r = 0; break
	od;
#ifndef NO_CHECKPOINT
	saved_term = h[x].term;
	saved_batch = h[x].done + 1
#endif
}

inline purge(x) {
	r = 0;
	do
	:: r < ROWS ->
		if
#ifdef PURGE_EARLY
		:: knows(x, r) && !row[r].gone -> delete(r)
#else
		:: knows(x, r) && knows(x, r) <= h[x].done && !row[r].gone -> delete(r)
#endif
		:: else
		fi;
		r++
	:: else -> r = 0; break
	od
}

/* A lease that was lost does not come back in the same term. */
inline elect(x) {
	h[x].pc == 0 && !h[x].leads;
	h[x].leads = 1;
	h[1 - x].leads = 0
}

inline step(x) {
	if
	/* opening fences every earlier producer */
	:: h[x].pc == 0 -> h[x].valid = 1; h[1 - x].valid = 0; h[x].pc = 1
	:: h[x].pc == 1 -> h[x].old_term = saved_term; h[x].old_batch = saved_batch; h[x].pc = 2
#ifdef NO_CLEAR
	:: h[x].pc == 2 -> h[x].old_term = 0; h[x].old_batch = 0; new_term(x); h[x].pc = 3
#else
	:: h[x].pc == 2 -> clear(x); new_term(x); h[x].pc = 3
#endif
	:: h[x].pc == 3 && h[x].marked < ROWS && may_mark(x) -> mark(x)
	:: h[x].pc == 3 && h[x].done < h[x].marked && may_commit(x) ->
		commit(x);
		if
		:: h[x].done++
#ifdef GUESS
		:: true			/* the answer was lost: it must have failed, so once more */
#else
		:: abandon(x)		/* the answer was lost: opening decides */
#endif
		fi
	:: h[x].pc == 3 && h[x].marked -> purge(x)
	:: h[x].pc > 0 -> abandon(x)
	fi
}

init {
	unsigned r : 3;
	unsigned t : 4;
	do
	:: atomic {
		if
		:: appeared < ROWS -> row[appeared].there = 1; appeared++
		:: elect(0)
		:: elect(1)
		:: step(0)
		:: step(1)
		fi
	}
	od
}
