/* Harvest's range mode: one outbox, one shard, two harvesters (HARVEST.md §14 to §15).
 *
 * Written from the specification alone. Transactions draw ids one after another, insert a row under
 * some of them, and commit or roll back whenever they like. Anybody may become leader at any time; a harvester goes on with what it was doing long after it was
 * deposed, abandons what it has read at any moment, and does not learn what became of a commit.
 *
 * Checked: each committed row is published at most once; of a key, in the order of the ids; none
 * that is not committed; and none is passed over: an id that the committed checkpoint holds for
 * published or dead is no unpublished row, nor one of a transaction that still runs.
 * Each mutation (-D...) leaves out one rule (see check.py).
 */

#ifndef IDS
#define IDS 3
#endif
#define TXNS 2
#define ALL ((1 << IDS) - 1)

mtype = { idle, running, committed, aborted };

mtype txn[TXNS] = idle;
byte owner[IDS];		/* 1 + the transaction that drew the id, 0: not drawn */
unsigned drawn : 3;		/* ids that were drawn */
unsigned rows : 4;		/* bit set: there is a row in the table, visible or not */
unsigned published : 4;

/* the checkpoint in Kafka */
unsigned saved_last : 3;	/* ids below it are published, dead, or in saved_gaps */
unsigned saved_gaps : 4;

typedef Harvester {
	bit valid;		/* its producer was opened, and fenced by nobody since */
	unsigned pc : 3;	/* 0 open, 1 read the checkpoint, 2 read, 3 holders, 4 lookup, 5 send */
	unsigned last : 3;
	unsigned gaps : 4;
	unsigned window : 4;	/* rows that were read */
	unsigned high : 3;	/* what the window reaches up to */
	bit known[TXNS];	/* the suspects of the gaps; all gaps have the same here */
	bit judged;		/* whether there is evidence at all */
	bit remains[TXNS]
};

Harvester h[2];

#define is_visible(i) (((rows >> (i)) & 1) && txn[owner[i] - 1] == committed)
#define has(set, i) (((set) >> (i)) & 1)

/* Either the second transaction has the key of the first and begins when that one has ended, or
 * each has a key of its own and they overlap. */
bit follows;
#define same_key(i, j) (follows || owner[i] == owner[j])
#define may_begin(t) ((t) == 0 || !follows || txn[0] == committed || txn[0] == aborted)

inline reset(x) {
	h[x].pc = 0;
	h[x].valid = 0;
	h[x].last = 0;
	h[x].gaps = 0;
	h[x].window = 0;
	h[x].high = 0;
	h[x].judged = 0;
	h[x].known[0] = 0;
	h[x].known[1] = 0;
	h[x].remains[0] = 0;
	h[x].remains[1] = 0
}

/* What the broker does: the rows, and the checkpoint, or nothing. */
inline commit(x) {
	i = 0;
	do
	:: i < IDS ->
		if
		:: has(h[x].window, i) ->
			assert(!has(published, i));
			assert(is_visible(i));
			/* of one transaction, and of the key that two share, in the order of the ids */
			j = 0;
			do
			:: j < i ->
				assert(!(is_visible(j) && !has(published, j) && !has(h[x].window, j) &&
					 same_key(i, j)));
				j++
			:: else -> j = 0; break
			od
		:: else
		fi;
		i++
	:: else -> i = 0; break
	od;
	published = published | h[x].window;
#ifndef NO_CHECKPOINT
	saved_last = h[x].high;
	saved_gaps = h[x].gaps
#endif
}

inline write(t) {
	if
	:: txn[t] == idle && may_begin(t) && drawn < IDS -> txn[t] = running; owner[drawn] = t + 1;
		if
		:: rows = rows | (1 << drawn)
		:: true
		fi;
		drawn++
	:: txn[t] == running && drawn < IDS -> owner[drawn] = t + 1;
		if
		:: rows = rows | (1 << drawn)
		:: true
		fi;
		drawn++
	:: txn[t] == running -> txn[t] = committed
	:: txn[t] == running -> txn[t] = aborted
	fi
}

inline read(x) {
	h[x].window = 0;
	h[x].high = h[x].last;
	i = h[x].last;
	do
	:: i < drawn ->
		if
		:: is_visible(i) ->
			h[x].window = h[x].window | (1 << i);
			/* what it did not see between is a new gap; of it nobody is a suspect yet */
			j = h[x].high;
			do
			:: j < i -> h[x].gaps = h[x].gaps | (1 << j); h[x].judged = 0; j++
			:: else -> j = 0; break
			od;
			h[x].high = i + 1;
			if
			:: true
			:: i = IDS	/* the window is full */
			fi
		:: else
		fi;
		i++
	:: else -> i = 0; break
	od;
#ifdef NO_GAPS
	h[x].gaps = 0;
#endif
	h[x].pc = (h[x].gaps -> 3 : 5)
}

inline holders(x) {
	i = 0;
	do
	:: i < TXNS ->
		h[x].remains[i] = (txn[i] == running && (h[x].known[i] || !h[x].judged));
		i++
	:: else -> i = 0; break
	od
}

inline lookup(x) {
	i = 0;
	do
	:: i < IDS ->
		if
		:: has(h[x].gaps, i) && is_visible(i) ->
			h[x].gaps = h[x].gaps & (ALL - (1 << i));
			h[x].window = h[x].window | (1 << i)
		:: else
		fi;
		i++
	:: else -> i = 0; break
	od
}

inline decide(x) {
	if
#ifdef DEAD_AT_ONCE
	:: true -> h[x].gaps = 0
#else
	:: !h[x].remains[0] && !h[x].remains[1] -> h[x].gaps = 0
	:: else
#endif
	fi;
	h[x].judged = 1;
	h[x].known[0] = h[x].remains[0];
	h[x].known[1] = h[x].remains[1];
	h[x].remains[0] = 0;
	h[x].remains[1] = 0;
	h[x].pc = 5
}

#ifdef NO_FENCE
#define may_commit(x) true
#else
#define may_commit(x) h[x].valid
#endif

inline step(x) {
	if
	:: h[x].pc == 0 -> h[x].valid = 1; h[1 - x].valid = 0; h[x].pc = 1
	:: h[x].pc == 1 -> h[x].last = saved_last; h[x].gaps = saved_gaps; h[x].judged = 0; h[x].pc = 2
	:: h[x].pc == 2 -> read(x)
#ifdef HOLDERS_LATE
	:: h[x].pc == 3 -> lookup(x); h[x].pc = 4
	:: h[x].pc == 4 -> holders(x); decide(x)
#else
	:: h[x].pc == 3 -> holders(x); h[x].pc = 4
	:: h[x].pc == 4 -> lookup(x); decide(x)
#endif
	:: h[x].pc == 5 && !h[x].window -> h[x].last = h[x].high; h[x].pc = 2
	:: h[x].pc == 5 && h[x].window && may_commit(x) ->
		commit(x);
		if
		:: h[x].last = h[x].high; h[x].window = 0; h[x].pc = 2
#ifdef GUESS
		:: h[x].pc = 5		/* the answer was lost: it must have failed, so once more */
#else
		:: reset(x)		/* the answer was lost: opening decides */
#endif
		fi
	:: h[x].pc > 0 -> reset(x)
	fi
}

/* What the checkpoint holds for settled is published, or there is no such row and never will be. */
inline check_checkpoint() {
	i = 0;
	do
	:: i < IDS ->
		assert(!(i < saved_last && !has(saved_gaps, i) && !has(published, i) && has(rows, i) &&
			 txn[owner[i] - 1] != aborted));
		i++
	:: else -> i = 0; break
	od
}

init {
	unsigned i : 3;
	unsigned j : 3;
	if
	:: follows = 0
	:: follows = 1
	fi;
	do
	:: atomic {
		if
		:: write(0)
		:: write(1)
		:: step(0)
		:: step(1)
		fi;
		check_checkpoint()
	}
	od
}
