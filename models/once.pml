/*
 * once.pml - the write-back of a page of O_GWRONCE, beside groups that fetch the page. Once the
 * file is synced or closed, no group reads an older byte.
 *
 * Real code: include/gpufs/cache/run_writer.cuh (write_piece, update_fetched),
 * cache/write_back.cuh (write_page, wait_for_fetch), cache/dirty_run.cuh (end),
 * file/opener.cuh (may_fetch).
 *
 * One byte of a file, which is written once through O_GWRONCE. Two pages of the cache may hold it:
 * that of O_GWRONCE (`dirty`, `cleaning`, `marked`), and the fetched one (`state`, `page`, `pins`),
 * which other descriptors use. A bool of a byte says whether it is the new one. A lookup and a pin
 * are one step, and so are the steps of an eviction (slot_state.pml has them). dirty.pml has the
 * flags and the mask beside writers, and errors of the host.
 *
 * Configuration: FETCHES (of each group that fetches), CLEANERS (groups that write back, beside
 * the one that closes).
 */

#ifndef FETCHES
#define FETCHES 2
#endif
#ifndef CLEANERS
#define CLEANERS 1
#endif

mtype = { absent, loading, resident };

bool file;
bool dirty, cleaning, marked;
mtype state = absent;
bool page;
byte pins;
bool may_fetch;
bool closed;

inline look_up()
{
    atomic {
        found = state;
        if
        :: found != absent -> pins++
        :: else
        fi
    }
}

/* update_fetched(), for what look_up() has found */
inline update()
{
    if
    :: found == resident -> page = true; pins--
#ifndef MUTANT_TRUSTS_A_FETCH
    :: found == loading -> marked = true; pins--; kept = true
#else
    :: found == loading -> pins--
#endif
    :: found == absent
    fi
}

/* Takes the page, if it is dirty and no other group has it, and writes it to the file. */
inline write()
{
    kept = false;
    sent = false;
    atomic {
        if
        :: dirty && !cleaning -> dirty = false; cleaning = true; took = true
        :: else -> took = false
        fi
    }
    if
    :: took ->
#ifdef MUTANT_ASKS_BEFORE_IT_WRITES
        asked = may_fetch;
#endif
#ifdef MUTANT_LOOKS_UP_BEFORE_IT_WRITES
        look_up();
#endif
        atomic { sent = marked; marked = false }
        if
        :: sent ->
            file = true;
#ifdef MUTANT_CLEAN_BEFORE_UPDATE
            cleaning = false;
#endif
#ifndef MUTANT_ASKS_BEFORE_IT_WRITES
            asked = may_fetch;
#endif
#ifndef MUTANT_LOOKS_UP_BEFORE_IT_WRITES
            if
            :: asked -> look_up(); update()
            :: else
            fi
#else
            update()
#endif
        :: else
        fi;
        /* dirty_run::end(): the flags come before the end of `cleaning` */
        if
        :: kept -> dirty = true; took = false
        :: else
        fi;
        cleaning = false
    :: else
    fi
}

proctype cleaner()
{
    bool took, kept, sent, asked;
    mtype found;

    write()
}

/* The group that writes the byte, and then syncs or closes the file. */
proctype closer()
{
    bool took, kept, sent, asked;
    mtype found;

    marked = true;
    dirty = true;
    do
    :: !cleaning ->
        write();
        if
        :: took -> break
        :: else
        fi;
        /* needs_writing() */
        if
        :: !dirty && !cleaning -> break
        :: else
        fi;
        state != loading   /* wait_for_fetch() */
    od;
    closed = true
}

/* Opens the file without O_GWRONCE, and reads; the page may be evicted before each time. */
proctype fetcher()
{
    byte left = FETCHES;
    bool own, seen, after;

    may_fetch = true;
    do
    :: left > 0 ->
        left--;
        if
        :: atomic { state == resident && pins == 0 -> state = absent; page = false }
        :: true
        fi;
        after = closed;
        atomic {
            if
            :: state == absent -> state = loading; own = true
            :: else -> own = false
            fi
        }
        if
        :: own ->
            seen = file;
            page = seen;
            state = resident
        :: else
        fi;
        /* A read: a byte from before the write is an error only if the read began after the close.
         * If the page has gone again, the read fetches it once more. */
        atomic {
            if
            :: state == resident -> assert(!after || page)
            :: else
            fi
        }
    :: left == 0 -> break
    od
}

init
{
    byte i;

    atomic {
        run closer();
        run fetcher();
        run fetcher();
        for (i : 1 .. CLEANERS) { run cleaner() }
    }
}
