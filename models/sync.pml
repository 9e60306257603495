/*
 * sync.pml - syncs of one file, and reports of its closes. A sync that returns 0 has the caller's
 * bytes on the disk, and the close of a user whose bytes were lost before does not return 0, though
 * the kernel returns an error only once.
 *
 * Real code: src/service/sync_rounds.hpp, file_table::ask_all() (src/service/file_writers.cpp).
 *
 * Each user opens the file, writes a byte, syncs or not, and closes. A close asks through its
 * descriptor whether bytes were lost, and then closes it. Some users come back for another turn.
 * Users with the same number modulo DESCRIPTORS have the same descriptor. Another program syncs
 * once too.
 *
 * The kernel is Linux (errseq_t). A sync begins to write what is dirty, waits until nothing of the
 * file is being written, and returns whether a write has failed since the descriptor's last sync,
 * or its open. An open also gets an error that no descriptor has returned so far. Bytes that failed
 * are clean and lost. A report of a close waits for nothing of the file. What a round does under its mutex is one step.
 *
 * Configuration: USERS (2 or 3), DESCRIPTORS (1 or 2), TURNS (of each), FAULTS (writes that fail),
 * KERNEL (1: it writes without being asked, once).
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
#define ROUNDS 16   /* at most */
#define SYNC 0
#define REPORT 2
#define NONE 255
#define OUTSIDE 2      /* the other program's descriptor */
#define BIT(i) (1 << (i))

/* The kernel's: a bit for each user's byte. */
byte dirty, in_writing, on_disk;
bool untold[3];        /* for each descriptor, the last is the other program's: an error since */
bool unseen;           /* an error that no descriptor has returned */
byte faults = FAULTS;

/* sync_rounds */
bool is_running;
byte made, begun;      /* rounds; they begin in this order */
byte waiting[4] = NONE;   /* rounds that have not begun: a descriptor's sync, its report */
bool is_done[ROUNDS], failed[ROUNDS];
bool has_error;

byte open_in[2];       /* users that have the file open, by descriptor */

/* Ghosts. */
/* A user may hear of lost bytes: they were lost, or nobody knew of them, since the last time that no
 * user had the file open. */
bool lost_here;
byte lost;             /* a bit for each user's byte that could not be written */

/* Writes what is dirty. */
inline write_out()
{
    atomic { taken = dirty & ~in_writing; dirty = dirty & ~taken; in_writing = in_writing | taken }
    if
    :: atomic { on_disk = on_disk | taken; in_writing = in_writing & ~taken; taken = 0 }
    :: atomic {
        taken != 0 && faults > 0 -> faults--;
        untold[0] = true; untold[1] = true; untold[OUTSIDE] = true; unseen = true;
        lost_here = true; lost = lost | taken;
        in_writing = in_writing & ~taken; taken = 0
       }
    fi
}

/* fsync(2) of a descriptor. Sets `bad`. */
inline host_sync(d)
{
    write_out();
    in_writing == 0;
    atomic {
        bad = untold[d];
        untold[d] = false;
        if
        :: bad -> unseen = false
        :: else
        fi
    }
}

/* A report of a close (backend_file::report_close()). Sets `bad`. */
inline host_report(d)
{
    atomic {
        bad = untold[d];
        untold[d] = false;
        if
        :: bad -> unseen = false
        :: else
        fi
    }
}

#ifdef MUTANT_SHARES_AMONG_DESCRIPTORS
#define SHARED(what, d) what
#else
#define SHARED(what, d) (what + d)
#endif

/* sync_rounds::run(): the caller's round. */
inline take_round(what, d)
{
    atomic {
        if
#ifdef MUTANT_JOINS_WHAT_RUNS
        :: is_running && waiting[SHARED(what, d)] == NONE -> own = begun - 1
        :: !is_running && waiting[SHARED(what, d)] == NONE ->
#else
        :: waiting[SHARED(what, d)] == NONE ->
#endif
            own = made; waiting[SHARED(what, d)] = made; made++; assert(made <= ROUNDS)
        :: else -> own = waiting[SHARED(what, d)]
        fi
    }
}
inline begin_round(what, d)
{
    atomic {
#ifdef MUTANT_TWO_AT_A_TIME
        !is_done[own] && own == begun ->
#else
        !is_done[own] && own == begun && !is_running ->
#endif
        is_running = true; begun++; waiting[SHARED(what, d)] = NONE
    }
}
inline end_round()
{
    atomic {
        failed[own] = bad;
        is_done[own] = true;
        is_running = false;
        if
#ifdef MUTANT_FORGETS
        :: false
#else
        :: bad -> has_error = true
#endif
        :: else
        fi
    }
}
/* ... and error(). Sets `bad`. */
inline take_result()
{
    atomic { bad = failed[own] || has_error; own = 0 }
}

inline sync(d)
{
#ifdef MUTANT_WITHOUT_ROUNDS
    host_sync(d)
#else
    take_round(SYNC, d);
    if
    :: atomic { is_done[own] }
    :: begin_round(SYNC, d); host_sync(d); end_round()
    fi;
    take_result()
#endif
}

inline report(d)
{
#ifdef MUTANT_WITHOUT_ROUNDS
    host_report(d)
#else
    take_round(REPORT, d);
    if
    :: atomic { is_done[own] }
    :: begin_round(REPORT, d); host_report(d); end_round()
    fi;
    take_result()
#endif
}

#define IS_OPEN (open_in[0] + open_in[1] != 0)

proctype user(byte me)
{
    byte turns = TURNS, taken, own;
    byte descriptor = me % DESCRIPTORS;
    bool bad, is_lost;

    do
    :: atomic { turns > 0 -> turns--;
            if
            :: !IS_OPEN -> lost_here = unseen
            :: else
            fi;
            if
            :: open_in[descriptor] == 0 -> untold[descriptor] = unseen
            :: else
            fi;
            open_in[descriptor]++
        }
        atomic { dirty = dirty | BIT(me); on_disk = on_disk & ~BIT(me); lost = lost & ~BIT(me) }
        if
        :: sync(descriptor);
            assert(bad || (on_disk & BIT(me)));   /* property: 0 only with the bytes on the disk */
            assert(!bad || lost_here)   /* property: no error of bytes that an earlier open lost */
        :: true
        fi;
        is_lost = (lost & BIT(me)) != 0;
#ifdef MUTANT_WITHOUT_REPORT
        bad = has_error;
#else
#ifdef MUTANT_REPORTS_BESIDE_ROUNDS
        host_report(descriptor);
        bad = bad || has_error;
#else
        report(descriptor);
#endif
#endif
        assert(bad || !is_lost);   /* property: a close does not return 0 for lost bytes */
        assert(!bad || lost_here);
        atomic {
            bad = false; is_lost = false;
            open_in[descriptor]--;
            if
#ifndef MUTANT_ERROR_FOR_EVER
            :: !IS_OPEN -> has_error = false   /* the next open gets another version */
#endif
            :: else
            fi
        }
    :: turns == 0 -> break
    od
}

/* Linux writes what is dirty at any time. */
proctype kernel()
{
    byte taken;

    write_out()
}

proctype other_program()
{
    byte taken;
    bool bad;

    host_sync(OUTSIDE)
}

init
{
    atomic {
        run other_program();
#if KERNEL
        run kernel();
#endif
        run user(0);
        run user(1);
#if USERS > 2
        run user(2)
#endif
    }
}
