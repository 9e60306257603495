/*
 * sync.pml - syncs of one file. A sync that returns 0 has the caller's bytes on the disk, though
 * the kernel returns an error only once.
 *
 * Real code: src/service/sync_rounds.hpp. `closings` comes from inode_state (file/open_files.cuh).
 * dirty.pml shows how the last close is found.
 *
 * Each user opens the file, writes a byte, syncs, and closes. Some users come back for another
 * turn. Users with the same number modulo DESCRIPTORS have the same descriptor. Another program
 * syncs once too.
 *
 * The kernel is Linux (errseq_t). A sync begins to write what is dirty, waits until nothing of the
 * file is being written, and returns whether a write has failed since the descriptor's last sync,
 * or its open. An open also gets an error that no descriptor has returned so far. Bytes that failed
 * are clean and lost. What a round does under its mutex is one step.
 *
 * Configuration: USERS (2 or 3), DESCRIPTORS (1 or 2), TURNS (of each), FAULTS (writes that fail).
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
#define ROUNDS 8   /* at most */
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
byte waiting[2] = NONE;   /* a descriptor's round that has not begun */
bool is_done[ROUNDS], failed[ROUNDS];
bool has_error;
byte error_closings;

/* inode_state */
byte users, users_of[2], closings;

/* Ghosts. */
/* A user may hear of lost bytes: they were lost, or nobody knew of them, since the last time that no
 * user had the file open. */
bool lost_here;

/* fsync(2) of a descriptor. Sets `bad`. */
inline host_sync(d)
{
    atomic { taken = dirty & ~in_writing; dirty = dirty & ~taken; in_writing = in_writing | taken }
    if
    :: atomic { on_disk = on_disk | taken; in_writing = in_writing & ~taken; taken = 0 }
    :: atomic {
        taken != 0 && faults > 0 -> faults--;
        untold[0] = true; untold[1] = true; untold[OUTSIDE] = true; unseen = true;
        lost_here = true;
        in_writing = in_writing & ~taken; taken = 0
       }
    fi;
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

#ifdef MUTANT_SHARES_AMONG_DESCRIPTORS
#define SHARED 0
#else
#define SHARED descriptor
#endif

/* sync_rounds::run(). Sets `bad`. */
inline sync()
{
#ifdef MUTANT_WITHOUT_ROUNDS
    host_sync(descriptor);
#else
    atomic {
        as_of = closings;
        if
#ifdef MUTANT_JOINS_WHAT_RUNS
        :: is_running && waiting[SHARED] == NONE -> own = begun - 1
        :: !is_running && waiting[SHARED] == NONE ->
#else
        :: waiting[SHARED] == NONE ->
#endif
            own = made; waiting[SHARED] = made; made++; assert(made <= ROUNDS)
        :: else -> own = waiting[SHARED]
        fi
    }
    if
    :: atomic { is_done[own] }
#ifdef MUTANT_TWO_AT_A_TIME
    :: atomic { !is_done[own] && own == begun ->
#else
    :: atomic { !is_done[own] && own == begun && !is_running ->
#endif
        is_running = true; begun++; waiting[SHARED] = NONE }
        host_sync(descriptor);
        atomic {
            failed[own] = bad;
            is_done[own] = true;
            is_running = false;
            if
#ifdef MUTANT_FORGETS
            :: false
#else
            :: bad && (!has_error || error_closings != as_of) -> has_error = true; error_closings = as_of
#endif
            :: else
            fi
        }
    fi;
    atomic {
#ifdef MUTANT_ERROR_FOR_EVER
        bad = failed[own] || has_error;
#else
        bad = failed[own] || (has_error && error_closings == as_of);
#endif
        own = 0;
        as_of = 0
    }
#endif
}

proctype user(byte me)
{
    byte turns = TURNS, taken, own, as_of;
    byte descriptor = me % DESCRIPTORS;
    bool bad;

    do
    :: atomic { turns > 0 -> turns--;
            if
            :: users == 0 -> lost_here = unseen
            :: else
            fi;
            if
            :: users_of[descriptor] == 0 -> untold[descriptor] = unseen
            :: else
            fi;
            users++; users_of[descriptor]++
        }
        atomic { dirty = dirty | BIT(me); on_disk = on_disk & ~BIT(me) }
        sync();
        assert(bad || (on_disk & BIT(me)));   /* property: 0 only with the bytes on the disk */
        /* property: no error of bytes that were lost, and known to be, before the last close */
        assert(!bad || lost_here);
        atomic {   /* the last close */
            bad = false;
            users--; users_of[descriptor]--;
            if
            :: users == 0 -> closings++; lost_here = false
            :: else
            fi
        }
    :: turns == 0 -> break
    od
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
        run user(0);
        run user(1);
#if USERS > 2
        run user(2)
#endif
    }
}
