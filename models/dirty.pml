/*
 * dirty.pml - what was written of a page, and how it gets to the file: writers, write-back, eviction, close, truncation.
 *
 * Real code: include/gpufs/cache/dirty.cuh (flags, mask, dirty pin), cache/dirty_run.cuh and write_back.cuh (begin, take the mask, read,
 * host, end; flush; discard), file/write.cuh (writers; truncation), file/open_files.cuh (the last close; nodes).
 * README.md maps steps to files.
 *
 * One page of two bytes. Each store to a byte gives it the next higher number, so the file is right when it has the last one, and
 * an old byte that lands on a newer one shows. Two users write, sync and close; a group writes back in the background; the
 * frame may be evicted when nobody has pinned it, and is loaded again by the next writer; somebody outside may write to any byte
 * of the file that is not dirty here: only a ghost notes it, because such a byte must not be written from here.
 *
 * Rule of granularity: one step of an actor is one access to shared memory (one load, one store or one atomic
 * read-modify-write), together with thread-private work and ghost variables. `atomic` never joins two shared accesses, but for
 * the two places marked ABSTRACTION. The host writes each byte in a step of its own, and may fail before each.
 *
 * What the model leaves out: weak memory (spin is sequentially consistent; dirty.cuh argues the orders), how a page is found,
 * loaded and evicted (slot_state.pml: here one step each), groups of several threads, runs of several pages and pages of several
 * pieces (each page has its own flags and mask; a failed run is a failed page of each), hosts that do not answer, mappings.
 * Polling is a blocking wait, so a wait that nobody ends is an invalid end state, and an endless run can only be a
 * livelock (no progress labels exist: -DNP finds every cycle).
 *
 * Configuration: WRITES0, WRITES1 (writes of each user), CLEANERS and CLEANINGS (groups that write back, and how often each),
 * FAULTS (host writes that may fail), EVICTIONS, SYNCS, RECORDS (1: the users share an open file; 2: each has its own of the
 * same file), TRUNCATE (a third user cuts the file behind the first byte).
 */

#ifndef WRITES0
#define WRITES0 1
#endif
#ifndef WRITES1
#define WRITES1 1
#endif
#ifndef CLEANERS
#define CLEANERS 1
#endif
#ifndef CLEANINGS
#define CLEANINGS 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 1
#endif
#ifndef OUTSIDE
#define OUTSIDE 1   /* writes from outside */
#endif
#ifndef SYNCS
#define SYNCS 0
#endif
#ifndef RECORDS
#define RECORDS 1
#endif

#define DIRTY    1
#define CLEANING 2
#define WHOLE    4
#define PARTIAL  8
/* Beside the flags: the open file through which the page became dirty. */
#ifdef MUTANT_HANDLE_BESIDE_FLAGS
#define MY_HANDLE 0
#define HANDLE(f) handle
#else
#define MY_HANDLE (mine << 4)
#define HANDLE(f) ((f) >> 4)
#endif

#define BIT(i)  (1 << (i))
#define ALL     3
#define NOBODY  255

/* The frame: its state word is `resident` and `pins`. */
bool resident = true;
byte pins;
byte page[2];
byte flags;               /* with the handle */
byte mask;
#ifdef MUTANT_HANDLE_BESIDE_FLAGS
byte handle;
#endif

byte node_dirty;          /* of the file's node: its dirty pages */
bool node_error;
byte file[2];
bool is_open[RECORDS];
byte holders = 2;         /* of the one record */

/* Ghosts and budgets: not in the code. */
byte last[2];             /* the number of the last store to a byte */
byte completed[2];        /* the highest number of a write that has returned */
byte writing[2];          /* users that are in a write of the byte */
#if RECORDS == 2
byte writer[2];           /* the user of the last store */
bool must_hear[2];        /* a user whose bytes another one gave up */
#endif
bool outside[2];          /* written by others since it was written here */
bool lost[2];             /* given up, by a close that told its error */
byte cleaning_now = NOBODY;
byte faults = FAULTS;
byte evictions = EVICTIONS;
byte outsiders = OUTSIDE;
byte syncs = SYNCS;
#ifdef TRUNCATE
byte before_cut = NOBODY; /* the last store to byte 1 before the cut, when nobody was writing it */
bool cut_done;
bool after_cut;           /* the last store to byte 1 came after the cut had returned */
#endif

#if RECORDS == 2
#define NODE_OPEN (is_open[0] || is_open[1])
#else
#define NODE_OPEN is_open[0]
#endif

/* What the truncation may cut obeys other rules: see init. */
#ifdef TRUNCATE
#define KEPT(i) ((i) == 0)
#else
#define KEPT(i) true
#endif

/* property: the dirty count is never negative, and its node not another file's yet */
inline count_up()   { atomic { assert(NODE_OPEN); node_dirty++ } }
inline count_down() { atomic { assert(NODE_OPEN && node_dirty > 0); node_dirty-- } }
inline unpin()      { atomic { assert(pins > 0); pins-- } }

/* ---- Writers. */

inline store(i)
{
    atomic {
        last[i]++;
        stored[i] = last[i];
        page[i] = last[i];
#if RECORDS == 2
        writer[i] = me;
#endif
        outside[i] = false;
        lost[i] = false;
#ifdef TRUNCATE
        if
        :: i == 1 -> after_cut = cut_done
        :: else
        fi
#endif
    }
}

/* One byte, or both: then `whole`, and no bits. */
inline store_bytes()
{
    if
    :: bits & BIT(0) -> store(0)
    :: else
    fi;
    if
    :: bits & BIT(1) -> store(1)
    :: else
    fi
}

inline set_bits()
{
    if
    :: what == PARTIAL -> mask = mask | bits
    :: else
    fi
}

/* page_dirt::set_again(), of a page that was dirty when its flags were `seen`, before the bytes were stored; else
 * page_dirt::set(). The handle stays that of whoever made the page dirty. */
inline set_flags()
{
    atomic {
        if
#ifdef MUTANT_SET_AGAIN_WITHOUT_CAS
        :: (seen & (DIRTY | what)) == (DIRTY | what) -> goto marked
#else
        :: (seen & DIRTY) && flags == seen -> flags = seen | what; goto marked
#endif
        :: else
        fi
    }
#ifdef MUTANT_HANDLE_BESIDE_FLAGS
    handle = mine;
#endif
    seen = flags;
    do
    :: atomic { what == PARTIAL && (seen & (DIRTY | PARTIAL)) == (DIRTY | PARTIAL) -> break }
    :: atomic { !(what == PARTIAL && (seen & (DIRTY | PARTIAL)) == (DIRTY | PARTIAL)) && !(seen & DIRTY) && !has_pin ->
#ifndef MUTANT_NO_DIRTY_PIN
            pins++;
#endif
            has_pin = true }
#ifndef MUTANT_COUNT_AFTER_DIRTY
        count_up()
#endif
    :: atomic { !(what == PARTIAL && (seen & (DIRTY | PARTIAL)) == (DIRTY | PARTIAL)) && ((seen & DIRTY) || has_pin) ->
            if
            :: flags == seen -> flags = seen | DIRTY | what | (seen & DIRTY -> 0 : MY_HANDLE); break
            :: else -> seen = flags
            fi }
    od;
#ifdef MUTANT_COUNT_AFTER_DIRTY
    if
    :: has_pin -> count_up()
    :: else
    fi;
#endif
    if
    :: has_pin && (seen & DIRTY) ->
#if !defined(MUTANT_PIN_KEPT) && !defined(MUTANT_NO_DIRTY_PIN)
        unpin();
#endif
        count_down()
    :: else
    fi
}

/* ---- Write-back. */

/* dirty_run::begin_page(): `what` is what is dirty of the page, which is then pinned and this group's; or 0. */
inline begin()
{
    atomic { what = 0; pins++; seen = resident }
    /* ABSTRACTION: the loop of load and CAS is one step. A load that ends it, or the CAS that does, is all that has an effect;
     * each other turn is due to somebody else's step. */
    if
#ifdef MUTANT_TWO_CLEANERS
    :: atomic { seen && (flags & DIRTY) ->
#else
    :: atomic { seen && (flags & DIRTY) && !(flags & CLEANING) ->
#endif
            assert(cleaning_now == NOBODY);   /* property: no two at the same page */
            cleaning_now = me;
            what = flags;
#ifdef MUTANT_FLAGS_AFTER_MASK
            flags = flags | CLEANING;
#else
            flags = CLEANING;
#endif
            seen = 0 }
    :: else -> seen = 0; unpin()
    fi
}

/* write_back::begin_after_others(): 0 only when nothing is dirty. */
inline begin_after_others()
{
    do
    :: !(flags & CLEANING) ->
        begin();
        if
        :: what != 0 -> break
#ifdef MUTANT_DIRTY_AGAIN_IS_CLEAN
        :: what == 0 && !(flags & CLEANING) -> break
        :: what == 0 && (flags & CLEANING)
#else
        :: what == 0 && !(flags & (DIRTY | CLEANING)) -> break
        :: what == 0 && (flags & (DIRTY | CLEANING))
#endif
        fi
    od
}

/* dirty_run::end_page(). `left`: what is dirty of it still. */
inline end_ok()
{
#ifndef MUTANT_NO_DIRTY_PIN
    unpin();
#endif
#ifndef MUTANT_COUNT_AFTER_FLAG
    count_down();
#endif
#ifdef MUTANT_END_CLEARS_ALL
    atomic { flags = 0; cleaning_now = NOBODY }
#else
    atomic { flags = flags & ~CLEANING; cleaning_now = NOBODY }
#endif
#ifdef MUTANT_COUNT_AFTER_FLAG
    count_down();
#endif
    unpin()
}

inline end_failed(left)
{
    atomic {   /* ABSTRACTION: as in begin() */
        seen = flags & DIRTY;
        flags = flags | (seen -> (left) & (WHOLE | PARTIAL) : left)
    }
    if
#ifdef MUTANT_FAILED_DROPS_PIN
    :: true ->
#else
    :: seen ->   /* somebody has written meanwhile, and brought a pin and a handle */
#endif
        seen = 0;
#if !defined(MUTANT_FAILED_KEEPS_BOTH_PINS) && !defined(MUTANT_NO_DIRTY_PIN)
        unpin();
#endif
        count_down()
    :: else
    fi;
    atomic { flags = flags & ~CLEANING; cleaning_now = NOBODY }
    unpin()
}

inline take_mask()
{
    if
    :: what & PARTIAL -> atomic { bits = mask; mask = 0 }
    :: else
    fi;
    if
    :: what & WHOLE -> bits = ALL
    :: else
    fi
}

inline read_bytes()
{
    if
    :: bits & BIT(0) -> copy[0] = page[0]
    :: else
    fi;
    if
    :: bits & BIT(1) -> copy[1] = page[1]
    :: else
    fi
}

inline host_write(i)
{
    if
    :: atomic { !failed && (bits & BIT(i)) ->
            assert(is_open[through] && NODE_OPEN);
            assert(!outside[i]);            /* property: only bytes that were written */
            assert(!KEPT(i) || copy[i] >= file[i]);   /* property: nothing old on top of what is newer */
            file[i] = copy[i] }
    :: atomic { !failed && (bits & BIT(i)) && faults > 0 -> faults--; failed = true }
    :: failed || !(bits & BIT(i))
    fi
}

/* Writes the page that begin() took back; `through`: an open file. Sets `failed`. `keeps`: an error is kept for those who sync;
 * who syncs tells it. */
inline write_out(keeps)
{
#ifdef MUTANT_READ_BEFORE_MASK
    bits = ALL;
    read_bytes();
    bits = 0;
    take_mask();
#else
    take_mask();
#ifdef MUTANT_FLAGS_AFTER_MASK
    flags = CLEANING;
#endif
    read_bytes();
#endif
    failed = false;
    host_write(0);
    host_write(1);
    if
    :: failed ->
        /* Bits of a whole page are not put back: the flag says all of it, and they would be written with its next byte. */
#ifndef MUTANT_BITS_NOT_RESTORED
        if
#ifdef MUTANT_BITS_OF_WHOLE_RESTORED
        :: true -> mask = mask | bits
#else
        :: !(what & WHOLE) -> mask = mask | bits
        :: else
#endif
        fi;
#endif
        atomic { assert(NODE_OPEN); node_error = node_error || keeps }
        end_failed(what)
    :: else ->
        end_ok()
    fi;
    atomic { bits = 0; copy[0] = 0; copy[1] = 0 }
}

/* write_back::flush(): all that was written before it began is in the file when it returns without an error (`failed`). */
inline flush()
{
    atomic { due[0] = completed[0]; due[1] = completed[1]; failed = false; through = mine }
    if
    :: node_dirty != 0 ->
        do
#ifdef MUTANT_FLUSH_DOES_NOT_WAIT
        :: true ->
#else
        :: !(flags & CLEANING) ->
#endif
            begin();
            if
            :: what != 0 -> write_out(false); break
#if defined(MUTANT_FLUSH_DOES_NOT_WAIT) || defined(MUTANT_FLUSH_TRUSTS_OTHERS)
            :: what == 0 -> break
#else
            :: what == 0 && !(flags & (DIRTY | CLEANING)) -> break
            :: what == 0 && (flags & (DIRTY | CLEANING))
#endif
            fi
        od
    :: node_dirty == 0
    fi;
    atomic {
        what = 0;
        assert(failed || lost[0] || file[0] >= due[0]);
        assert(failed || lost[1] || !KEPT(1) || file[1] >= due[1]);
        due[0] = 0;
        due[1] = 0
    }
}

/* The ghost of what a page that is given up loses: `taken` is dirty of it. */
inline give_up(i, taken)
{
    if
    :: ((taken) & BIT(i)) && file[i] != last[i] ->
#if RECORDS == 2
        must_hear[writer[i]] = true;
#endif
        lost[i] = true
    :: else
    fi
}

/* write_back::discard() */
inline discard()
{
    begin_after_others();
    if
    :: what != 0 && HANDLE(what) == mine ->
        d_step {
            give_up(0, mask | (what & WHOLE -> ALL : 0));
            give_up(1, mask | (what & WHOLE -> ALL : 0));
            mask = 0
        }
#ifndef MUTANT_GIVEN_UP_IN_SILENCE
        node_error = true;
#endif
        end_ok();
        /* So that the page is not found with bytes that the file does not have. */
        atomic {
            if
            :: resident && pins == 0 -> evict()
            :: else
            fi
        }
    :: what != 0 && HANDLE(what) != mine -> end_failed(what)
    :: what == 0
    fi;
    what = 0
}

/* The end of a sync or close: its error is its own, or one that was kept. */
inline told()
{
    atomic {
#if RECORDS == 2
        assert(failed || node_error || !must_hear[me]);   /* property: no byte is lost in silence */
        must_hear[me] = false;
#endif
        node_error = false
    }
}

inline evict()
{
    assert(flags == 0 && mask == 0);   /* property: never while something of it is dirty */
    resident = false
}

inline leave_write(i)
{
    if
    :: bits & BIT(i) ->
        writing[i]--;
        if
        :: stored[i] > completed[i] -> completed[i] = stored[i]
        :: else
        fi;
        stored[i] = 0
    :: else
    fi
}

proctype user(byte me; byte writes)
{
    byte mine = (RECORDS == 2 -> me : 0);
    byte bits, what, seen, through;
    byte stored[2], copy[2], due[2];
    bool has_pin, failed, closes;

next:
    if
    :: atomic { writes > 0 -> writes-- }
    :: atomic { writes == 0 -> goto close }
    :: atomic { syncs > 0 -> syncs--; goto sync }
    fi;

    /* gwrite */
    atomic {
        if
        :: bits = BIT(0); what = PARTIAL
        :: bits = BIT(1); what = PARTIAL
        :: bits = ALL; what = WHOLE
        fi;
        writing[0] = writing[0] + (bits & 1);
        writing[1] = writing[1] + (bits >> 1)
    }
    /* Found, or loaded. */
    atomic {
        if
        :: resident -> pins++
        :: !resident && pins == 0 -> resident = true; page[0] = file[0]; page[1] = file[1]; pins++
        fi
    }
    seen = flags;
#ifdef MUTANT_FLAGS_BEFORE_BYTES
    set_bits();
    set_flags();
marked:
    store_bytes();
#elif defined(MUTANT_FLAGS_BEFORE_BITS)
    store_bytes();
    set_flags();
marked:
    set_bits();
#else
    store_bytes();
    set_bits();
    set_flags();
marked:
#endif
    unpin();
    atomic {
        has_pin = false;
        what = 0;
        seen = 0;
        leave_write(0);
        leave_write(1);
        bits = 0;
        goto next
    }

close:
    atomic {
        closes = true;
#if RECORDS == 1
        holders--;
        if
        :: holders != 0 -> goto finished
        :: else
        fi
#endif
    }
sync:
    flush();
    told();
    if
    :: atomic { !closes -> failed = false; goto next }
    :: closes && failed -> discard()
    :: closes && !failed
    fi;
    atomic {
#if RECORDS == 2
        must_hear[me] = false;   /* told already */
#endif
        assert(is_open[mine]);
        is_open[mine] = false
    }

finished:
    skip
}

#if CLEANERS > 0
/* write_back::some(): for whoever needs frames, at any time. */
proctype cleaner(byte me)
{
    byte what, bits, seen, through, left = CLEANINGS;
    byte copy[2];
    bool failed;

    do
    :: atomic { left > 0 -> left-- }
        begin();
        if
        :: what != 0 ->
            through = HANDLE(what);
            write_out(true);
            atomic { through = 0; what = 0; failed = false }
        :: else
        fi
    :: left == 0 -> break
    od
}

#endif

/* Who needs a frame, and who writes the file from outside. */
proctype others()
{
    do
    :: atomic { evictions > 0 && resident && pins == 0 -> evictions--; evict() }
    /* Any byte that is not being written, nor dirty: then nothing of the page may be. */
    :: atomic { outsiders > 0 && !outside[0] && writing[0] == 0 && (last[0] == 0 || flags == 0) -> outsiders--; outside[0] = true }
    :: atomic { outsiders > 0 && !outside[1] && writing[1] == 0 && (last[1] == 0 || flags == 0) -> outsiders--; outside[1] = true }
    :: _nr_pr == 2 -> break   /* nobody else is left */
    od
}

#ifdef TRUNCATE
/* truncate_file(): byte 1 goes, byte 0 stays. Before the host and the page lose it nobody knows that it will. */
proctype truncator(byte me)
{
    byte what, seen, now;

    atomic {
        file[1] = 0;
        if
        :: writing[1] == 0 -> before_cut = last[1]
        :: else
        fi
    }
    /* cut_page() */
    atomic {
        if
        :: resident -> pins++
        :: else -> goto cut_again
        fi
    }
#ifdef MUTANT_CUT_DOES_NOT_WAIT
    begin();
#else
    begin_after_others();
#endif
    if
    :: what != 0 ->
        atomic {
            if
            :: what & WHOLE -> mask = BIT(0)
            :: else -> mask = mask & BIT(0)
            fi;
            now = mask
        }
        if
#ifdef MUTANT_CUT_LEAVES_WHOLE
        :: now != 0 -> end_failed((what | PARTIAL))
#else
        :: now != 0 -> end_failed(((what & ~WHOLE) | PARTIAL))
#endif
        :: else -> end_ok()
        fi
    :: else
    fi;
    page[1] = 0;
    unpin();
cut_again:
    atomic {
#ifndef MUTANT_CUT_ONCE
        file[1] = 0;
#endif
        cut_done = true;
        what = 0;
        now = 0
    }
}
#endif

/* Starts everybody and, when all have ended, checks that nothing is left over. */
init
{
    byte i;

    atomic {
        is_open[0] = true;
#if RECORDS == 2
        is_open[1] = true;
#endif
        run others();   /* ends last, so it is first here: processes end in reverse order */
        run user(0, WRITES0);
        run user(1, WRITES1);
#if CLEANERS > 0
        run cleaner(2);
#endif
#if CLEANERS > 1
        run cleaner(3);
#endif
#ifdef TRUNCATE
        run truncator(4)
#endif
    }
    _nr_pr == 1;
    d_step {
        assert(flags == 0 && mask == 0 && pins == 0 && node_dirty == 0 && !NODE_OPEN);
        do
        :: i < 2 ->
            assert(lost[i] || !KEPT(i) || file[i] == last[i]);
            assert(lost[i] || !KEPT(i) || !resident || page[i] == file[i]);
            i++
        :: else -> break
        od;
        i = 0;
#ifdef TRUNCATE
        assert(lost[1] || file[1] == last[1] || file[1] == 0);
        assert(lost[1] || !after_cut || file[1] == last[1]);
        assert(before_cut != last[1] || file[1] == 0);
#endif
    }
}
