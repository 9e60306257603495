/*
 * sync.pml - syncs of one file. A sync that returns 0 has the caller's bytes on the disk, though
 * the kernel returns an error only once.
 *
 * Real code: src/service/sync_rounds.hpp. `closings` comes from inode_state (file/open_files.cuh).
 * dirty.pml shows how the last close is found.
 *
 * Each user writes a byte, syncs, and closes. Some users come back for another turn. The kernel is
 * Linux. A sync begins to write what is dirty, waits until nothing of the file is being written,
 * and returns the error of any write since the last call that returned one. Bytes that failed are
 * clean and lost. What a round does under its mutex is one step.
 *
 * Configuration: USERS (2 or 3), TURNS (of each), FAULTS (writes that fail).
 */

#ifndef USERS
#define USERS 2
#endif
#ifndef TURNS
#define TURNS 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define ROUNDS 8   /* at most */
#define BIT(i) (1 << (i))

/* The kernel's: a bit for each user's byte. */
byte dirty, in_writing, on_disk;
bool untold;           /* an error that no sync has returned */
byte faults = FAULTS;

/* sync_rounds */
bool is_running;
byte next_round = 1;   /* the round that a new caller shares */
bool begun[ROUNDS], is_done[ROUNDS], failed[ROUNDS];
bool has_error;
byte error_closings;

/* inode_state */
byte users, closings;

/* Ghosts. */
bool lost_here;        /* bytes were lost since the last time that no user had the file open */

/* fsync(2). Sets `bad`. */
inline host_sync()
{
    atomic { taken = dirty & ~in_writing; dirty = dirty & ~taken; in_writing = in_writing | taken }
    if
    :: atomic { on_disk = on_disk | taken; in_writing = in_writing & ~taken; taken = 0 }
    :: atomic { taken != 0 && faults > 0 -> faults--; untold = true; lost_here = true; in_writing = in_writing & ~taken; taken = 0 }
    fi;
    in_writing == 0;
    atomic { bad = untold; untold = false }
}

/* sync_rounds::run(). Sets `bad`. */
inline sync()
{
#ifdef MUTANT_WITHOUT_ROUNDS
    host_sync();
#else
    atomic {
        as_of = closings;
#ifdef MUTANT_JOINS_WHAT_RUNS
        own = (is_running -> next_round - 1 : next_round);
#else
        own = next_round;
#endif
    }
    if
    :: atomic { is_done[own] }
#ifdef MUTANT_TWO_AT_A_TIME
    :: atomic { !is_done[own] && !begun[own] -> begun[own] = true; is_running = true; next_round++; assert(next_round < ROUNDS) }
#else
    :: atomic { !is_done[own] && !is_running -> begun[own] = true; is_running = true; next_round++; assert(next_round < ROUNDS) }
#endif
        host_sync();
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
    bool bad;

    do
    :: atomic { turns > 0 -> turns--; users++ }
        atomic { dirty = dirty | BIT(me); on_disk = on_disk & ~BIT(me) }
        sync();
        assert(bad || (on_disk & BIT(me)));   /* property: 0 only with the bytes on the disk */
        /* property: no error of bytes that were lost before the last close */
        assert(!bad || lost_here);
        atomic {   /* the last close */
            bad = false;
            users--;
            if
            :: users == 0 -> closings++; lost_here = false
            :: else
            fi
        }
    :: turns == 0 -> break
    od
}

init
{
    atomic {
        run user(0);
        run user(1);
#if USERS > 2
        run user(2)
#endif
    }
}
