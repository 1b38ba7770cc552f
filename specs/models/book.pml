/* A book: a partition whose messages two clients share by ranges (PROTOCOL.md §5.18), no clocks.
 *
 * Written from the specification alone. Clients ask for ranges, begin their messages in order, tell
 * how far they are, cut off what they have not begun, give ranges back, and take over ranges of
 * others whenever they like: who is stale is the business of claims.pml. They crash at any moment,
 * read that they lost a range as late as they like, and each of their records arrives late or never.
 *
 * Checked: a message that lies below the frontier and in no open range was done by somebody; open
 * ranges do not overlap, and lie below the frontier; and no message is begun twice by clients that
 * held it then, unless its range was taken over in between. Each mutation (-D...) leaves out one rule, and the checker must find a
 * violation (see check.py).
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef GRANTS
#define GRANTS 3
#endif
#define CLIENTS 2

#define NONE 0
#define CLAIM 1
#define TAKE 2
#define BEAT 3
#define SPLIT 4
#define RELEASE 5

typedef Range {
	bit open;
	unsigned end : 3;
	unsigned position : 3;
	unsigned holder : 2;	/* client + 1, 0: free */
	unsigned epoch : 3	/* of the last grant, 0: none */
};

typedef Client {
	unsigned epoch : 3;	/* what it holds, as far as it knows; 0: nothing */
	unsigned start : 3;
	unsigned next : 3;	/* the message that it begins next */
	unsigned limit : 3;	/* it begins none from here on */
	unsigned out : 3;	/* the kind of the record on its way, and what it says */
	unsigned about : 3;	/* the range's start; of CLAIM, the frontier that it had read */
	unsigned under : 3;	/* the epoch, the expected version */
	unsigned at : 3;	/* count, position, or where to cut */
	bit asks		/* it waits for the answer to a claim of its own */
};

Range r[MESSAGES];		/* by their starts */
unsigned frontier : 3;
unsigned grants : 3;
bit done[MESSAGES];		/* somebody has */
bit begun[MESSAGES];		/* by who held it then, and its range was not taken over since */
Client c[CLIENTS];

#define holds(x) (c[x].epoch != 0)
#ifdef NO_EPOCH
#define current(x) (r[c[x].about].open && r[c[x].about].holder != 0)
#else
#define current(x) (r[c[x].about].open && r[c[x].about].holder != 0 && \
	r[c[x].about].epoch == c[x].under)
#endif
#ifdef BEYOND_END
#define last(x) frontier
#else
#define last(x) c[x].limit
#endif

inline lose(x) {
	c[x].epoch = 0; c[x].start = 0; c[x].next = 0; c[x].limit = 0
}

inline forget(x) {
	c[x].out = NONE; c[x].about = 0; c[x].under = 0; c[x].at = 0; c[x].asks = 0
}

/* Range s is the sender's from here on; a client that has crashed since does not know. */
inline grant(x, s) {
	grants++;
	r[s].holder = x + 1;
	r[s].epoch = grants;
	if
	:: c[x].asks ->
		c[x].epoch = grants;
		c[x].start = s;
		c[x].next = r[s].position;
		c[x].limit = r[s].end
	:: else
	fi
}

inline cut(s, at_) {
	r[at_].open = 1;
	r[at_].end = r[s].end;
	r[at_].position = at_;
	r[at_].holder = 0;
	r[at_].epoch = 0;
	r[s].end = at_
}

inline close(s) {
	r[s].open = 0; r[s].end = 0; r[s].position = 0; r[s].holder = 0; r[s].epoch = 0
}

inline claim(x) {
	s = 0;
	do
	:: s < MESSAGES && !(r[s].open && r[s].holder == 0) -> s++
	:: else -> break
	od;
#ifdef CLIENT_CHOOSES
	s = MESSAGES;
#endif
	if
	:: grants == GRANTS
	:: grants < GRANTS && s < MESSAGES ->
		i = r[s].position + c[x].at;
		if
		:: i < r[s].end -> cut(s, i)
		:: else
		fi;
		grant(x, s)
	:: else ->
#ifdef CLIENT_CHOOSES
		s = c[x].about;
#else
		s = frontier;
#endif
		i = s + c[x].at;
		if
		:: i <= MESSAGES ->
			r[s].open = 1;
			r[s].end = i;
			r[s].position = s;
			if
			:: frontier < i -> frontier = i
			:: else
			fi;
			grant(x, s)
		:: else
		fi
	fi
}

/* A position is not set back. */
inline move(x) {
	if
	:: c[x].at > r[s].position -> r[s].position = c[x].at
	:: else
	fi
}

inline arrive(x) {
	s = c[x].about;
	if
	:: c[x].out == CLAIM -> claim(x)
	:: c[x].out == TAKE && r[s].open && r[s].epoch == c[x].under && grants < GRANTS ->
		i = r[s].position;
		do
		:: i < r[s].end -> begun[i] = 0; i++
		:: else -> i = 0; break
		od;
		grant(x, s)
	:: c[x].out == BEAT && current(x) -> move(x)
	:: c[x].out == SPLIT && current(x) ->
		if
		:: r[s].position < c[x].at && c[x].at < r[s].end -> cut(s, c[x].at)
		:: else
		fi
	:: c[x].out == RELEASE && current(x) ->
		move(x);
#ifdef RELEASE_ENDS
		close(s)
#else
		if
		:: r[s].position >= r[s].end -> close(s)
		:: else -> r[s].holder = 0
		fi
#endif
	:: else
	fi;
	forget(x);
	i = 0;
	check();
	j = 0
}

inline check() {
	j = 0;	/* what lies below is done, or in a range */
	do
	:: i < MESSAGES ->
		if
		:: r[i].open ->
			assert(j <= i && i < r[i].end && r[i].end <= frontier);
			j = r[i].end
		:: else
		fi;
		i++
	:: else -> i = 0; break
	od;
	j = 0;
	s = 0;	/* the range that the message lies in, if it is open */
	do
	:: i < frontier ->
		if
		:: r[i].open -> s = i
		:: else
		fi;
		assert(done[i] || (r[s].open && r[s].position <= i && i < r[s].end));
		i++
	:: else -> i = 0; s = 0; break
	od
}

inline begin(x) {
	if
	:: r[c[x].start].epoch == c[x].epoch ->
		assert(!begun[c[x].next]);
		begun[c[x].next] = 1
	:: else	/* it has lost it, and does not know */
	fi;
	done[c[x].next] = 1;
	c[x].next++
}

/* Something is sent; nothing else is on its way. */
inline send(x, kind, about_, at_) {
	c[x].out = kind;
	c[x].about = about_;
	c[x].under = c[x].epoch;
	c[x].at = at_
}

inline give_back(x) {
	send(x, RELEASE, c[x].start, c[x].next);
	lose(x)
}

proctype client(byte x) {
	byte i, j, s;
end:	do
	:: atomic { !holds(x) && c[x].out == NONE ->
		send(x, CLAIM, frontier, 1); c[x].asks = 1 }
	:: atomic { !holds(x) && c[x].out == NONE ->
		send(x, CLAIM, frontier, 2); c[x].asks = 1 }
	:: atomic { !holds(x) && c[x].out == NONE && r[0].open && r[0].holder != 0 ->
		send(x, TAKE, 0, 0); c[x].under = r[0].epoch; c[x].asks = 1 }
	:: atomic { !holds(x) && c[x].out == NONE && r[1].open && r[1].holder != 0 ->
		send(x, TAKE, 1, 0); c[x].under = r[1].epoch; c[x].asks = 1 }
	:: atomic { holds(x) && c[x].next < last(x) -> begin(x) }
	:: atomic { holds(x) && c[x].out == NONE && c[x].next > c[x].start ->
		send(x, BEAT, c[x].start, c[x].next) }
	:: atomic { holds(x) && c[x].out == NONE && c[x].next + 1 < c[x].limit ->
		send(x, SPLIT, c[x].start, c[x].next + 1);
#ifndef SPLIT_BEGUN
		c[x].limit = c[x].next + 1
#endif
		}
	:: atomic { holds(x) && c[x].out == NONE -> give_back(x) }
	:: atomic { c[x].out != NONE -> d_step { arrive(x); skip } }
	:: atomic { c[x].out != NONE && c[x].out != SPLIT -> forget(x) }	/* it never arrives */
	:: atomic { holds(x) && r[c[x].start].epoch != c[x].epoch -> lose(x) }	/* it reads on */
	:: atomic { holds(x) || c[x].asks -> lose(x); c[x].asks = 0 }	/* it crashes */
	od
}

init {
	atomic { run client(0); run client(1) }
}
