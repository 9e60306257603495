/*
 * sync.pml - syncs of one file, and reports of its closes. A sync that returns 0 has the caller's
 * bytes on the disk, and the close of a user whose bytes were lost before does not return 0, though
 * the kernel returns an error only once.
 *
 * Real code: src/service/sync_rounds.hpp, src/service/file_writers.cpp.
 *
 * Each user opens the file, writes a byte through one of the open descriptors, syncs or not, asks for
 * a report of its close, and closes. Some users come back for another turn, and some give up on a
 * sync, whose request stays. Users with the same number modulo DESCRIPTORS have the same descriptor.
 * Two threads of the service serve the requests. Another program syncs once too.
 *
 * The kernel is Linux (errseq_t). A sync begins to write what is dirty, waits until nothing of the
 * file is being written, and returns whether a write has failed since the descriptor's last sync,
 * or its open. An open also gets an error that no descriptor has returned so far. Bytes that failed
 * are clean and lost. A report of a close waits for nothing of the file. Or, with OWN_ERRORS, a
 * descriptor is told only of bytes that went through it, and a report writes what is dirty first, as
 * some network file systems do at a close.
 * What the service does under a mutex is one step.
 *
 * Configuration: USERS (2 or 3), DESCRIPTORS (1 or 2), TURNS (of user 0), FAULTS (writes that fail),
 * KERNEL (1: it writes without being asked, once), OTHERS (1: another program), OWN_ERRORS,
 * GIVES_UP (syncs on which a user gives up).
 */

#ifndef USERS
#define USERS 2
#endif
#ifndef DESCRIPTORS
#define DESCRIPTORS 2
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef KERNEL
#define KERNEL 1
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef OWN_ERRORS
#define OWN_ERRORS 0
#endif
#ifndef GIVES_UP
#define GIVES_UP 0
#endif

#if TURNS > 1
#define SLOTS (DESCRIPTORS + 2)   /* host descriptors of the mount */
#else
#if USERS > 2
#define SLOTS (DESCRIPTORS + 1)
#else
#define SLOTS DESCRIPTORS
#endif
#endif
#define OUTSIDE SLOTS             /* the other program's */
#define NOBODY 128                /* in a mask of users: one that wants no answer */
#define BIT(i) (1 << (i))

/* The kernel's: a bit for each user's byte, and the descriptor through which it was written. */
byte dirty, in_writing, on_disk;
byte via[USERS];
bool untold[SLOTS + 1];
bool unseen;           /* an error that no descriptor has returned */
byte faults = FAULTS;

/* The channel: one request of each user. */
#define NO_REQUEST 0
#define SYNC 1
#define REPORT 2
#define CLOSE 3
byte request[USERS], session_of[USERS];
bool is_answered[USERS], has_failed[USERS];
bool drops[USERS];      /* the next answer to a sync: its user has given up */

/* file_table */
#define FREE 0
#define OPEN 1
#define KEPT 2         /* closed before it was asked */
byte state[SLOTS], slot_of[DESCRIPTORS], open_in[DESCRIPTORS];
bool marked[SLOTS];    /* it may have an untold error */
byte session;          /* the version that is open */

/* sync_rounds. A mask of users who wait, by kind; and those whose round runs. */
byte waiting[2], running;
bool is_made, has_error;

byte asked = SLOTS;    /* the descriptor of a call under way: its number is not free */
byte gives_up = GIVES_UP, left = USERS;

/* Ghosts. */
/* A user may hear of lost bytes: they were lost, or nobody knew of them, since the last time that no
 * user had the file open and no call was under way. */
bool lost_here;
byte lost;             /* a bit for each user's byte that could not be written */

inline fail(user)
{
    if
    :: (taken & BIT(user)) != 0 ->
        if
        :: OWN_ERRORS -> untold[via[user]] = true
        :: else ->
            for (s : 0 .. SLOTS) { untold[s] = true }
            s = 0; unseen = true
        fi
    :: else
    fi
}

/* Writes what is dirty. */
inline write_out()
{
    atomic { taken = dirty & ~in_writing; dirty = dirty & ~taken; in_writing = in_writing | taken }
    if
    :: atomic { on_disk = on_disk | taken; in_writing = in_writing & ~taken; taken = 0 }
    :: atomic {
        taken != 0 && faults > 0 -> faults--;
        fail(0); fail(1);
#if USERS > 2
        fail(2);
#endif
        lost_here = true; lost = lost | taken;
        in_writing = in_writing & ~taken; taken = 0
       }
    fi
}

/* The last step of both calls. Sets `bad`. */
inline tell(d)
{
    atomic {
        if
        :: untold[d] -> bad = true; untold[d] = false; unseen = false
#ifndef MUTANT_FORGETS
            if
            :: d != OUTSIDE -> has_error = true
            :: else
            fi
#endif
        :: else
        fi
    }
}
/* A report of a close (backend_file::report_close()). */
inline host_report(d)
{
#if OWN_ERRORS
    write_out();
    in_writing == 0;
#endif
    tell(d)
}
/* fsync(2) of a descriptor. */
inline host_sync(d)
{
    write_out();
    in_writing == 0;
    tell(d)
}

/* What a round has to do with a descriptor. */
#ifdef MUTANT_SYNCS_ONE
#define IS_SYNCED(what, d) (state[d] == OPEN && what == SYNC && !is_synced)
#else
#define IS_SYNCED(what, d) (state[d] == OPEN && what == SYNC)
#endif
#define IS_REPORTED(what, d) (state[d] == KEPT || (state[d] == OPEN && what == CLOSE && marked[d]))

#define END_OF_CALL \
    atomic { \
        if \
        :: state[at] == KEPT && !marked[at] -> state[at] = FREE \
        :: else \
        fi; \
        at++; asked = SLOTS \
    }

/* file_table::make_round(), of the requests in `running`. */
inline make_round(what)
{
    do
    :: at < SLOTS ->
        if
        :: atomic { IS_REPORTED(what, at) -> marked[at] = false; asked = at }
            host_report(at);
            END_OF_CALL
        :: atomic { IS_SYNCED(what, at) -> is_synced = true; asked = at }
            host_sync(at);
            END_OF_CALL
        :: atomic { else -> at++ }
        fi
    :: atomic { at == SLOTS -> at = 0; is_synced = false; break }
    od
}

/* sync_rounds::make() */
inline make_rounds()
{
    do
    :: makes ->
        atomic {
            bad = false;
            if
            :: waiting[0] != 0 -> running = waiting[0]; waiting[0] = 0; what = SYNC
            :: waiting[1] != 0 -> running = waiting[1]; waiting[1] = 0; what = CLOSE
#ifdef MUTANT_TWO_AT_A_TIME
            :: waiting[0] + waiting[1] == 0 -> what = CLOSE
#endif
            fi
        }
        make_round(what);
        atomic {
            bad = bad || has_error; told = running; running = 0;
            makes = (waiting[0] | waiting[1]) != 0;
            is_made = makes
        }
        atomic {
            for (s : 0 .. USERS - 1) {
                if
                :: (told & BIT(s)) != 0 && what == SYNC && drops[s] -> drops[s] = false
                :: (told & BIT(s)) != 0 && !(what == SYNC && drops[s]) ->
                    has_failed[s] = bad; is_answered[s] = true
                :: else
                fi
            }
            s = 0; told = 0; bad = false; what = NO_REQUEST
        }
    :: else -> break
    od
}

/* sync_rounds::add(). `kind`: 0 or 1. */
inline add(kind, who)
{
#ifdef MUTANT_JOINS_WHAT_RUNS
    if
    :: is_made && running != 0 -> running = running | (who)
    :: else -> waiting[kind] = waiting[kind] | (who)
    fi;
#else
    waiting[kind] = waiting[kind] | (who);
#endif
#ifdef MUTANT_TWO_AT_A_TIME
    makes = true;
#else
    makes = !is_made;
#endif
    is_made = true
}

proctype service()
{
    byte user, what, s, at, taken, told;
    bool bad, makes, is_synced;

    do
    :: atomic {
            if
            :: request[0] != NO_REQUEST -> user = 0
            :: request[1] != NO_REQUEST -> user = 1
#if USERS > 2
            :: request[2] != NO_REQUEST -> user = 2
#endif
            fi;
            what = request[user]; request[user] = NO_REQUEST
        }
        if
        /* Of an earlier version: no descriptor is left that it could ask. */
        :: atomic { what == SYNC && session_of[user] != session ->
                assert(drops[user]);
                drops[user] = false
            }
        :: atomic { what == SYNC && session_of[user] == session -> add(0, BIT(user)) }
        :: atomic { what == REPORT -> assert(session_of[user] == session);
#ifdef MUTANT_WITHOUT_REPORT
                has_failed[user] = has_error; is_answered[user] = true
#else
#ifdef MUTANT_REPORTS_BESIDE_ROUNDS
                at = slot_of[user % DESCRIPTORS]
#else
                marked[slot_of[user % DESCRIPTORS]] = true; add(1, BIT(user))
#endif
#endif
            }
#ifdef MUTANT_REPORTS_BESIDE_ROUNDS
            host_report(at);
            atomic {
                has_failed[user] = bad || has_error; is_answered[user] = true; at = 0; bad = false
            }
#endif
        :: atomic { what == CLOSE ->
                open_in[user % DESCRIPTORS]--;
                is_answered[user] = true;
                at = slot_of[user % DESCRIPTORS];
                if
                :: open_in[user % DESCRIPTORS] != 0
#ifdef MUTANT_CLOSES_UNASKED
                :: open_in[user % DESCRIPTORS] == 0 -> state[at] = FREE; marked[at] = false
#else
                :: open_in[user % DESCRIPTORS] == 0 && !marked[at] -> state[at] = FREE
                :: open_in[user % DESCRIPTORS] == 0 && marked[at] ->
                    state[at] = KEPT; add(1, NOBODY)
#endif
                fi;
                at = 0
            }
        fi;
        atomic { what = NO_REQUEST; user = 0 }
        make_rounds()
    :: atomic { left == 0 && request[0] + request[1] == 0 ->
#if USERS > 2
                if
                :: request[2] == 0 -> break
                :: else
                fi
#else
                break
#endif
              }
    od
}

#if DESCRIPTORS == 1
#define IS_OPEN (open_in[0] != 0)
#else
#define IS_OPEN (open_in[0] + open_in[1] != 0)
#endif
#if SLOTS == 1
#define IS_KEPT (state[0] == KEPT)
#else
#if SLOTS == 2
#define IS_KEPT (state[0] == KEPT || state[1] == KEPT)
#else
#if SLOTS == 3
#define IS_KEPT (state[0] == KEPT || state[1] == KEPT || state[2] == KEPT)
#else
#define IS_KEPT (state[0] == KEPT || state[1] == KEPT || state[2] == KEPT || state[3] == KEPT)
#endif
#endif
#endif
#define IS_UNSETTLED (is_made || IS_KEPT)

/* Posts a request and waits for its answer. */
inline call(what)
{
    atomic { session_of[me] = own; is_answered[me] = false; request[me] = what }
}
#define ANSWERED atomic { is_answered[me] && request[me] == NO_REQUEST }

proctype user(byte me)
{
    byte turns = (me == 0 -> TURNS : 1), own, s;
    bool is_lost, gave_up;
    byte descriptor = me % DESCRIPTORS;

    do
    :: atomic { turns > 0 -> turns--;
            if
            :: IS_OPEN
#ifdef MUTANT_OPENS_BESIDE_CALLS
            :: !IS_OPEN -> session++; has_error = false; lost_here = unseen
#else
            :: !IS_OPEN && IS_UNSETTLED -> session++; lost_here = lost_here || unseen
            :: !IS_OPEN && !IS_UNSETTLED ->
#ifdef MUTANT_ERROR_FOR_EVER
                session++; lost_here = unseen
#else
                session++; has_error = false; lost_here = unseen
#endif
#endif
            fi;
            own = session;
            if
            :: open_in[descriptor] != 0
            :: else ->
                s = 0;
                do
                :: s < SLOTS && (state[s] != FREE || s == asked) -> s++
                :: else -> break
                od;
                assert(s < SLOTS);
                slot_of[descriptor] = s; state[s] = OPEN; marked[s] = true;
                untold[s] = unseen; s = 0
            fi;
            open_in[descriptor]++
        }
        atomic {
            dirty = dirty | BIT(me); on_disk = on_disk & ~BIT(me); lost = lost & ~BIT(me);
            if
            :: via[me] = slot_of[descriptor]
#if DESCRIPTORS > 1
            :: open_in[1 - descriptor] != 0 -> via[me] = slot_of[1 - descriptor]
#endif
            fi;
#ifndef MUTANT_WRITES_UNMARKED
            marked[via[me]] = true
#endif
        }
        if
        /* One call of each kind at a time, so that a mask of users names it. */
        :: atomic { !gave_up }
            call(SYNC);
            if
            :: ANSWERED;
                assert(has_failed[me] || (on_disk & BIT(me)));   /* property: 0 only with the bytes on the disk */
                assert(!has_failed[me] || lost_here)   /* property: no error of bytes that an earlier open lost */
            /* The model has one channel slot for each user, so the request must be taken first. */
            :: atomic { gives_up > 0 && request[me] == NO_REQUEST && !is_answered[me] ->
                        gives_up--; drops[me] = true; gave_up = true }
            fi
        :: true
        fi;
        is_lost = (lost & BIT(me)) != 0;
        call(REPORT);
        ANSWERED;
        assert(has_failed[me] || !is_lost);   /* property: a close does not return 0 for lost bytes */
        assert(!has_failed[me] || lost_here);
        is_lost = false;
        call(CLOSE);
        ANSWERED
    :: turns == 0 -> left--; break
    od
}

#if KERNEL
/* Linux writes what is dirty at any time. */
proctype kernel()
{
    byte taken, s;

    write_out()
}
#endif

#if OTHERS
proctype other_program()
{
    byte taken, s;
    bool bad;

    host_sync(OUTSIDE)
}
#endif

init
{
    atomic {
#if OTHERS
        run other_program();
#endif
#if KERNEL
        run kernel();
#endif
        run user(0);
        run user(1);
#if USERS > 2
        run user(2);
#endif
        run service();
        run service()
    }
}
