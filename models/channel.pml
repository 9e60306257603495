/*
 * channel.pml - requests from device groups to host workers, through memory in which every word has
 * one writer.
 *
 * Real code: include/gpufs/channel/layout.cuh (the words), client.cuh (claim, post, wait, release),
 * src/service/ (worker loop, guard of a dying worker). README.md maps steps to files.
 *
 * Granularity: one step is one access to shared memory, together with thread-private work and
 * ghosts. The reply word {sequence, result} is one word, and so is each word {sequence, payload} of
 * a request. A request has two words, which arrive with the bell in any order. Staging bytes are
 * stored in two steps, so that a reader that comes too early sees them half written.
 *
 * The model leaves out: weak memory (spin is sequentially consistent), the wrap of sequence
 * numbers, the size and direction of staging (bytes sent with a request obey the rule of the
 * request record), back-off and sleep of the workers, the heartbeat (the guard notices a death, and
 * the deadline covers a worker that hangs).
 *
 * Polling is a blocking wait, so a reply that never comes is an invalid end state. An endless run
 * can only be a livelock (there are no progress labels: -DNP finds every cycle). Every run ends,
 * hence every posted request is answered.
 *
 * Configuration: SLOTS, CLIENTS (2 or 3), OPS (calls of each client), WORKERS, DEATHS (workers that
 * may die, anywhere), DEADLINES (how many waits may end by deadline), POSTS (how many calls do not
 * wait for the answer).
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef DEADLINES
#define DEADLINES 0
#endif
#ifndef POSTS
#define POSTS 0
#endif

#define FREE      0
#define BUSY      1
#define ABANDONED 2

#define NO_SLOT 255
#define EIO     254   /* result of a reply; all other results name the request that was served */
#define GARBAGE 253   /* half-written record or staging bytes */

/* Request ids: 1 .. CLIENTS * OPS, one for each call. */
#define REQUESTS (CLIENTS * OPS)

/* Device-private. */
byte owner[SLOTS];
byte sequence[SLOTS];     /* of the last request; only the owner touches it */
/* Written by the device, read by the host. */
typedef request_words { byte sequence[2]; byte payload[2] };
request_words request[SLOTS];
byte bell[SLOTS];
/* Written by the host, read by the device. */
byte staging[SLOTS];
typedef reply_word { byte sequence; byte result };
reply_word reply[SLOTS];
bool service_dead;
/* Host-private. */
byte served[SLOTS];
byte live = WORKERS;

/* Ghosts and budgets: not in the code. */
byte holder[SLOTS];             /* the client that owns the slot, + 1 */
byte served_times[REQUESTS + 1];
byte answered_times[REQUESTS + 1];
bool posted[REQUESTS + 1];
byte rung_for[SLOTS];           /* the request of the last bell */
byte calls_left = CLIENTS * OPS;
byte deaths = DEATHS;
byte deadlines = DEADLINES;
byte posts = POSTS;

inline take(s)
{
    assert(holder[s] == 0);   /* property: a slot never has two owners */
    holder[s] = me + 1
}

inline let_go(s)
{
    assert(holder[s] == me + 1);
    holder[s] = 0
}

/* Ghost: clears what no actor reads again, so that runs that differ only in it are one. */
inline forget_reply(s)
{
    staging[s] = 0;
    reply[s].result = 0
}

/* What a worker polls: a bell that no worker took, and a request that belongs to it. */
#ifdef MUTANT_ONE_WORD_TELLS_FOR_ALL
#define RUNG(s) (served[s] != bell[s] && request[s].sequence[0] == bell[s])
#else
#define RUNG(s) (served[s] != bell[s] && request[s].sequence[0] == bell[s] && request[s].sequence[1] == bell[s])
#endif

#define REPLIED(s) (reply[s].sequence == sequence[s])
#ifdef MUTANT_REUSE_BEFORE_REPLY
#define MAY_TAKE(s) true
#else
#define MAY_TAKE(s) REPLIED(s)
#endif

proctype client(byte me)
{
    byte id, result, n, stores;
    byte mine = NO_SLOT;
    bool forget;

next_call:
    atomic {
        if
        :: n == OPS -> goto finished
        :: else -> n++; id = me * OPS + n
        fi;
        if
        :: forget = false
        :: posts > 0 -> posts--; forget = true
        fi
    }

claim:
    /* The guards are what the client polls. The CAS after a guard on `abandoned` is a step of its
     * own. */
    if
    :: atomic { owner[0] == FREE -> owner[0] = BUSY; mine = 0; take(0) }
    :: atomic { owner[0] == ABANDONED && MAY_TAKE(0) -> mine = 0; goto take_abandoned }
#if SLOTS > 1
    :: atomic { owner[1] == FREE -> owner[1] = BUSY; mine = 1; take(1) }
    :: atomic { owner[1] == ABANDONED && MAY_TAKE(1) -> mine = 1; goto take_abandoned }
#endif
    :: atomic { service_dead -> goto call_done }
    :: atomic { deadlines > 0 -> deadlines--; goto call_done }
    fi;
    goto claimed;

take_abandoned:
    atomic {
        if
        :: owner[mine] == ABANDONED -> owner[mine] = BUSY; take(mine)
        :: else -> mine = NO_SLOT; goto claim
        fi
    }
#if !defined(MUTANT_CHECK_ONLY_BEFORE_TAKE) && !defined(MUTANT_REUSE_BEFORE_REPLY)
    /* What the client saw before the CAS may be old: other clients can have taken, used and
     * abandoned the slot in between. */
    if
    :: REPLIED(mine)
    :: atomic { !REPLIED(mine) -> owner[mine] = ABANDONED; let_go(mine); mine = NO_SLOT; goto claim }
    fi;
#endif

claimed:
    atomic {
        sequence[mine]++;
        /* property: the host has seen all words of the request before. So a word of memory holds
         * this request's number or the one before, and few bits tell them apart (request_record).
         */
        assert(served[mine] + 1 == sequence[mine]);
        posted[id] = true;
        rung_for[mine] = id
    }
    /* Three stores in any order. */
    stores = 0;
    do
    :: !(stores & 1) -> stores = stores | 1; atomic { request[mine].sequence[0] = sequence[mine]; request[mine].payload[0] = id }
    :: !(stores & 2) -> stores = stores | 2; atomic { request[mine].sequence[1] = sequence[mine]; request[mine].payload[1] = id }
    :: !(stores & 4) -> stores = stores | 4; bell[mine] = sequence[mine]
    :: stores == 7 -> stores = 0; break
    od;
    if
    :: forget ->
#ifdef MUTANT_FREE_AT_POST
        atomic { let_go(mine); owner[mine] = FREE; mine = NO_SLOT; goto call_done }
#else
        atomic { let_go(mine); owner[mine] = ABANDONED; mine = NO_SLOT; goto call_done }
#endif
    :: else
    fi;

    if
    :: atomic { REPLIED(mine) -> result = reply[mine].result }
    :: atomic { service_dead -> result = NO_SLOT }
    :: atomic { deadlines > 0 -> deadlines--; result = NO_SLOT }
    fi;

    if
    :: result == NO_SLOT ->
        /* The caller gets EIO. The reply may still come, into this slot. */
#ifdef MUTANT_FREE_AT_DEADLINE
        atomic { let_go(mine); owner[mine] = FREE; mine = NO_SLOT; goto call_done }
#else
        atomic { let_go(mine); owner[mine] = ABANDONED; mine = NO_SLOT; goto call_done }
#endif
    :: else
    fi;
#ifdef MUTANT_FREE_BEFORE_READ
    atomic { let_go(mine); owner[mine] = FREE }
#endif
    if
    :: result != EIO ->
        /* property: the reply and the staging bytes are this request's, and stay so while they are
         * read */
        assert(result == id);
        assert(staging[mine] == id);
        assert(staging[mine] == id)
    :: else -> assert(deaths < DEATHS)   /* EIO only from a guard */
    fi;
#ifndef MUTANT_FREE_BEFORE_READ
    atomic { forget_reply(mine); let_go(mine); owner[mine] = FREE }
#endif

call_done:
    atomic { mine = NO_SLOT; id = 0; result = 0; forget = false; calls_left--; goto next_call }

finished:
    skip
}

/* Ghost part of the worker's claim: names the request behind the bell. */
inline claim_request()
{
    request_held = rung_for[s];
    served_times[request_held]++;
    assert(served_times[request_held] == 1)   /* property: a request is served once */
}

/* Death may come between any two steps. It is also the branch that leaves the worker's loop. */
#define MAY_DIE :: atomic { deaths > 0 -> deaths--; goto dying }

inline write_reply(s, value)
{
    d_step {
        reply[s].sequence = held;
        reply[s].result = value;
        /* `request_held` is the ghost that names the request: set at the claim */
        answered_times[request_held]++;
        assert(answered_times[request_held] == 1)
    }
}

proctype worker()
{
    byte s = NO_SLOT, seen, held, copied, half, request_held;

idle:
end_idle:
    /* The guard stands for polling: a look at an idle slot changes nothing. What it read may be old
     * one step later. */
    if
    :: atomic { RUNG(0) -> s = 0; seen = served[0] }
#if SLOTS > 1
    :: atomic { RUNG(1) -> s = 1; seen = served[1] }
#endif
    MAY_DIE
    fi;
    held = bell[s];
    atomic {
        if
        :: request[s].sequence[0] != held -> s = NO_SLOT; seen = 0; held = 0; goto idle
        :: else -> copied = request[s].payload[0]
        fi
    }
    atomic {
        if
#ifndef MUTANT_ONE_WORD_TELLS_FOR_ALL
        :: request[s].sequence[1] != held -> s = NO_SLOT; seen = 0; held = 0; copied = 0; goto idle
#endif
        :: else -> half = request[s].payload[1]
        fi
    }
serve:
    atomic {
        if
#ifdef MUTANT_SERVED_WITHOUT_CAS
        :: seen != held -> skip
#else
        :: seen != held && served[s] == seen -> served[s] = held
#endif
#ifdef MUTANT_CAS_RETRIED_WITH_OLD_VALUE
        :: seen != held && served[s] != seen -> goto serve
        :: seen == held -> s = NO_SLOT; seen = 0; held = 0; copied = 0; half = 0; goto idle
#else
        :: else -> s = NO_SLOT; seen = 0; held = 0; copied = 0; half = 0; goto idle
#endif
        fi;
        seen = 0;
#ifndef MUTANT_SERVED_WITHOUT_CAS
        claim_request()
#endif
    }
#ifdef MUTANT_SERVED_WITHOUT_CAS
    atomic { served[s] = held; claim_request() }
#endif
    /* property: the request is whole, and is this one */
    atomic { assert(copied == request_held && half == request_held); half = 0 }

#ifdef MUTANT_REPLY_BEFORE_STAGING
    write_reply(s, copied);
    staging[s] = GARBAGE;
    staging[s] = copied;
#else
    if
    :: staging[s] = GARBAGE
    MAY_DIE
    fi;
    if
    :: staging[s] = copied
    MAY_DIE
    fi;
    if
    :: write_reply(s, copied)
    MAY_DIE
    fi;
#endif
    if
    /* the worker holds nothing any more */
    :: atomic { s = NO_SLOT; held = 0; copied = 0; request_held = 0; goto idle }
    MAY_DIE
    fi;

dying:
    /* The guard answers the request that the worker held, unless the reply went out before the
     * death. The slot may have a newer request by then. So the test is "the reply before mine is
     * still there", not "mine is not there". */
#ifndef MUTANT_GUARD_SILENT
    if
#ifdef MUTANT_GUARD_BLIND
    :: request_held != 0 ->
#elif defined(MUTANT_GUARD_ASKS_IF_MINE_IS_THERE)
    :: request_held != 0 && reply[s].sequence != held ->
#else
    :: request_held != 0 && reply[s].sequence + 1 == held ->
#endif
        write_reply(s, EIO)
    :: else
    fi;
#endif
    atomic {
        live--;
#ifndef MUTANT_NOBODY_SAYS_DEAD
        if
        :: live == 0 -> service_dead = true
        :: else
        fi
#endif
    }
}

/* Starts all actors. When all calls have ended and all requests are answered, checks that nothing
 * is left over. */
init
{
    byte i;

    atomic {
        do
        :: i < CLIENTS -> run client(i); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < WORKERS -> run worker(); i++
        :: else -> break
        od;
        i = 0
    }
    /* Blocks for ever, an invalid end state, if a call never ends or a live service leaves a
     * request unanswered. */
    calls_left == 0 && (service_dead || (reply[0].sequence == bell[0]
#if SLOTS > 1
        && reply[1].sequence == bell[1]
#endif
        ));
    d_step {
        i = 0;
        do
        :: i < SLOTS -> assert(holder[i] == 0 && owner[i] != BUSY); i++
        :: else -> break
        od;
        i = 1;
        do
        :: i <= REQUESTS ->
            /* property: with a live service each posted request is served once and answered once */
            assert(service_dead || (served_times[i] == posted[i] && answered_times[i] == posted[i]));
            assert(served_times[i] <= posted[i] && answered_times[i] <= served_times[i]);
            i++
        :: else -> break
        od
    }
}
