/*
 * dirty.pml - the dirty bytes of a page and their way to the file: writers, write-back, eviction,
 * opens and closes, truncation.
 *
 * Real code: include/gpufs/cache/dirty.cuh (flags, mask, dirty pin), cache/dirty_run.cuh,
 * run_writer.cuh and write_back.cuh (begin, take the mask, read, host, end; flush; discard),
 * file/write_bytes.cuh (writers), file/truncate.cuh (sync; truncation), file/open_files.cuh and
 * file/close_file.cuh (join and leave; versions). README.md maps steps to files.
 *
 * One page of one or two bytes. Each store to a byte gives it the next higher number. So the file
 * is right when it has the last number, and an old byte that lands on a newer one shows. Each user
 * opens the file, writes, syncs and closes it, before, while or after the other users do. A group
 * writes back in the background. The frame may be evicted when it has no pins, and the next writer
 * loads it again. Another program may write to any byte of the file that is not dirty here. Only a
 * ghost notes that, because such a byte must not be written from here.
 *
 * Dirty pages belong to the file's inode state (`node`), which is there while some user has the
 * file open at the host (`open_count`). They are written through any of its open files. `writers`
 * counts the users that may write. The last writer closes the gate, writes back what is dirty, or
 * gives it up, and opens the gate again. An open while no user has the file open begins a new
 * version of it.
 *
 * Granularity: one step of an actor is one access to shared memory (one load, one store or one
 * atomic read-modify-write), together with thread-private work and ghost variables. `atomic` never
 * joins two shared accesses, except in the two places marked ABSTRACTION. The host writes each byte
 * in a step of its own, and may fail before each.
 *
 * The model leaves out:
 *
 * * weak memory (spin is sequentially consistent; dirty.cuh argues the orders)
 * * how a page is found, loaded and evicted (one step each here; slot_state.pml has the steps)
 * * groups of several threads, runs of several pages and pages of several pieces (each page has its
 *   own flags and mask, and a failed run is a failed page of each)
 * * hosts that do not answer, and mappings
 * * records that several descriptors share (the last holder of one flushes before it leaves, the
 *   others do not: here any close may or may not)
 * * users that only read (they keep the file open, and do nothing else)
 * * descriptors that are closed while a call writes through them
 * * without TRUNCATE, the count of cleanings above the flags: so set_again() succeeds here in cases
 *   in which the code's fails
 *
 * Polling is a blocking wait, so a wait that no actor ends is an invalid end state. An endless run
 * can only be a livelock (there are no progress labels: -DNP finds every cycle).
 *
 * Configuration: BYTES (1 or 2), USERS (2 or 3), WRITES0 to WRITES2 (writes of each user), CLEANERS
 * and CLEANINGS (groups that write back, and how often each), FAULTS (host writes that may fail),
 * EVICTIONS, OUTSIDE (writes of other programs), SYNCS, TRUNCATE (user 1 cuts the file after the
 * first byte, as it opens it or later).
 */

#ifndef BYTES
#define BYTES 2
#endif
#ifndef USERS
#define USERS 2
#endif
#ifndef WRITES0
#define WRITES0 1
#endif
#ifndef WRITES1
#define WRITES1 1
#endif
#ifndef WRITES2
#define WRITES2 1
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
#define OUTSIDE 1
#endif
#ifndef SYNCS
#define SYNCS 0
#endif

/* Users that all do the same open the file in their order, so that no run is searched twice under
 * other names. */
#if !defined(TRUNCATE) && WRITES0 == WRITES1 && (USERS == 2 || WRITES1 == WRITES2)
#define IN_TURN
#endif

#define DIRTY    1
#define CLEANING 2
#define WHOLE    4
#define PARTIAL  8
#define CLOSING  16   /* beside the number of writers */

#define BIT(i)  (1 << (i))
#if BYTES == 2
#define ALL     3
#else
#define ALL     1
#endif
#define NOBODY  255

mtype = { syncing, leaving, last_one };

/* The frame: its state word is `resident` and `pins`. */
bool resident;
byte pins;
byte page[2];
byte flags;
byte mask;

/* the host's open files of the inode state, which is there while this is not 0 */
byte open_count;
byte writers;             /* of the inode state: how many users may write it, and CLOSING */
byte node_dirty;          /* its dirty pages */
/* errors kept for the next sync or close; the code keeps the first, here they are counted */
byte node_error;
byte file[2];

/* Ghosts and budgets: not in the code. */
byte last[2];             /* the number of the last store to a byte */
/* the highest number of a write that has returned and is not in the file; 0: none */
byte owed[2];
byte writing[2];          /* users that are writing the byte */
byte users;               /* a bit for each user that has joined and not left */
byte untold;              /* failures that no call has returned */
bool outside[2];          /* written by other programs since it was written here */
bool lost[2];             /* discarded, by a close that returned its error */
byte cleaning_now = NOBODY;
byte faults = FAULTS;
byte evictions = EVICTIONS;
byte outsiders = OUTSIDE;
#if SYNCS > 0
byte syncs = SYNCS;
#endif
#ifdef IN_TURN
byte opened;              /* users that have opened the file */
#endif
#ifdef TRUNCATE
bool cuts = true;         /* the cut is still to be made */
byte before_cut = NOBODY; /* the last store to byte 1 before the cut, when no user was writing it */
bool cut_done;
bool after_cut;           /* the last store to byte 1 came after the cut had returned */
#endif
#ifdef TRUNCATE
byte cut_count;           /* inode_state::cuts: odd while a truncation is under way */
/* above the flags, in one word with them: cleanings begun, and cuts of the page */
byte cleanings, notes;
bool covers = true;       /* the size of the inode state covers byte 1 */
bool reaches = true;      /* the host's file has byte 1 */
#define UNDER_WAY (cut_count == 1)
#endif

#define NODE_OPEN (open_count > 0)

#ifdef IN_TURN
#define IS_TURN (opened == me)
#else
#define IS_TURN true
#endif

/* What the truncation may cut obeys other rules: see close_host(). */
#ifdef TRUNCATE
#define KEPT(i) ((i) == 0)
#define ALL_CUT (me != 1 || !cuts)
#else
#define KEPT(i) true
#define ALL_CUT true
#endif

/* property: the dirty count is never negative, and never that of another version's inode state */
inline count_up()   { atomic { assert(NODE_OPEN); node_dirty++ } }
inline count_down() { atomic { assert(NODE_OPEN && node_dirty > 0); node_dirty-- } }
inline unpin()      { atomic { assert(pins > 0); pins--; seen = 0 } }

inline evict()
{
    assert(flags == 0 && mask == 0);   /* property: never while something of it is dirty */
    resident = false;
    page[0] = 0;
    page[1] = 0
}

/* ---- Writers. */

inline store(i)
{
    last[i]++;
    stored[i] = last[i];
    page[i] = last[i];
    outside[i] = false;
    lost[i] = false;
#ifdef TRUNCATE
    if
    :: i == 1 -> after_cut = cut_done
    :: else
    fi
#endif
}

/* One byte, or both: then `whole`, and no bits. */
inline store_bytes()
{
    atomic {
        if
        :: bits & BIT(0) -> store(0)
        :: else
        fi
    }
#if BYTES == 2
    atomic {
        if
        :: bits & BIT(1) -> store(1)
        :: else
        fi
    }
#endif
}

inline set_bits()
{
    atomic {
        if
        :: what == PARTIAL -> mask = mask | bits
        :: else
        fi
    }
}

/* page_dirt::set_again(), for a page that was dirty when its flags were `seen`, before the bytes
 * were stored; else page_dirt::set(), which begins with the current flags. */
#define BITS_SUFFICE (what == PARTIAL && (seen & (DIRTY | PARTIAL)) == (DIRTY | PARTIAL))
#ifdef TRUNCATE
#define IS_AS_SEEN (flags == seen && cleanings == cleanings_seen && notes == notes_seen)
#else
#define IS_AS_SEEN (flags == seen)
#endif
inline set_again()
{
    if
    :: atomic { !(seen & DIRTY) -> seen = flags }
#ifdef MUTANT_SET_AGAIN_WITHOUT_CAS
    :: (seen & (DIRTY | what)) == (DIRTY | what) -> goto marked
    :: atomic { (seen & DIRTY) && !(seen & what) -> seen = flags }
#else
    :: atomic { (seen & DIRTY) && IS_AS_SEEN -> flags = seen | what; goto marked }
    :: (seen & DIRTY) && !IS_AS_SEEN -> seen = flags
#endif
    fi
}
inline set()
{
    do
    :: BITS_SUFFICE -> break
    :: atomic { !(seen & DIRTY) && !has_pin ->
#ifndef MUTANT_NO_DIRTY_PIN
            pins++;
#endif
            has_pin = true }
#ifndef MUTANT_COUNT_AFTER_DIRTY
        count_up()
#endif
    :: atomic { !BITS_SUFFICE && ((seen & DIRTY) || has_pin) ->
            if
            :: flags == seen -> flags = seen | DIRTY | what; break
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

/* dirty_run::begin_page(): `what` is what is dirty of the page, which this group then owns and
 * pins; or 0. */
inline begin()
{
    atomic { pins++; seen = resident }
    /* ABSTRACTION: the loop of load and CAS is one step. Only the load or the CAS that ends it has
     * an effect. Each other round of the loop is due to another actor's step. */
    if
#ifdef MUTANT_TWO_CLEANERS
    :: atomic { seen && (flags & DIRTY) ->
#else
    :: atomic { seen && (flags & DIRTY) && !(flags & CLEANING) ->
#endif
            assert(cleaning_now == NOBODY);   /* property: at most one group writes the page back */
            cleaning_now = me;
            what = flags;
#ifdef TRUNCATE
            cleanings++;
#endif
#ifdef MUTANT_FLAGS_AFTER_MASK
            flags = flags | CLEANING;
#else
            flags = CLEANING;
#endif
            seen = 0 }
    :: else -> unpin()
    fi
}

/* What begin() did not take is clean; or dirty, because the faster group has failed. The code also
 * waits for that group before its first try. Here the first try may fail, as it may in the code
 * when the group comes after the wait. */
#define IS_CLEAN  (what == 0 && !(flags & (DIRTY | CLEANING)))
#define TRY_AGAIN (what == 0 && (flags & (DIRTY | CLEANING)) == DIRTY)

/* write_back::begin_after_others(): 0 only when nothing is dirty. */
inline begin_after_others()
{
    do
    :: begin();
        if
        :: what != 0 -> break
#ifdef MUTANT_DIRTY_AGAIN_IS_CLEAN
        :: what == 0 && !(flags & CLEANING) -> break
#else
        :: IS_CLEAN -> break
        :: TRY_AGAIN
#endif
        fi
    od
}

inline let_go() { atomic { assert(pins > 0); pins--; seen = 0; what = 0; bits = 0; copy[0] = 0; copy[1] = 0 } }

/* dirty_run::end_page(). `left`: what of the page is still dirty. */
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
    let_go()
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
    :: seen ->   /* another user has written meanwhile, and added a pin */
#endif
#if !defined(MUTANT_FAILED_KEEPS_BOTH_PINS) && !defined(MUTANT_NO_DIRTY_PIN)
        unpin();
#endif
        count_down()
    :: else
    fi;
    atomic { flags = flags & ~CLEANING; cleaning_now = NOBODY }
    let_go()
}

inline take_mask()
{
    atomic {
        if
        :: what & PARTIAL -> bits = mask; mask = 0
        :: else
        fi;
        if
        :: what & WHOLE -> bits = ALL
        :: else
        fi
    }
}

inline read_bytes()
{
    atomic {
        if
        :: bits & BIT(0) -> copy[0] = page[0]
        :: else
        fi
    }
#if BYTES == 2
    atomic {
        if
        :: bits & BIT(1) -> copy[1] = page[1]
        :: else
        fi
    }
#endif
}

inline host_write(i)
{
    if
    :: atomic { !failed && (bits & BIT(i)) ->
            assert(NODE_OPEN);
            assert(!outside[i]);            /* property: only bytes that were written here */
            /* property: nothing old on top of what is newer */
            assert(!KEPT(i) || copy[i] >= file[i]);
            file[i] = copy[i];
#ifdef TRUNCATE
            reaches = reaches || i == 1;
#endif
            if
            :: owed[i] <= file[i] -> owed[i] = 0
            :: else
            fi }
    :: atomic { !failed && (bits & BIT(i)) && faults > 0 -> faults--; failed = true }
    :: failed || !(bits & BIT(i))
    fi
}

inline note_error(who) { atomic { assert(NODE_OPEN); who++; untold++ } }

/* run_writer::write() does not run beside a truncation, which would cut what is written. Then
 * `what` becomes 0. */
#if defined(TRUNCATE) && !defined(MUTANT_CLEANS_BESIDE_CUT)
inline give_back_beside_cut()
{
    if
    :: UNDER_WAY -> end_failed(what)
    :: else
    fi
}
#else
inline give_back_beside_cut() { skip }
#endif

/* Writes back the page that begin() took. Sets `failed`. `who` counts the error: the caller, which
 * returns it, or the inode state, which keeps it. */
inline write_out(who)
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
#if BYTES == 2
    host_write(1);
#endif
    if
    :: failed ->
        /* Bits of a whole page are not put back: the flag covers all of it, and the bits would be
         * written with its next byte. */
#ifndef MUTANT_BITS_NOT_RESTORED
        atomic {
            if
#ifdef MUTANT_BITS_OF_WHOLE_RESTORED
            :: true -> mask = mask | bits
#else
            :: !(what & WHOLE) -> mask = mask | bits
            :: else
#endif
            fi
        }
#endif
#ifdef MUTANT_KEPT_AFTER_PAGE
        end_failed(what);
        note_error(who)
#else
        note_error(who);
        end_failed(what)
#endif
    :: else ->
        end_ok()
    fi
}

inline note_due() { due[0] = owed[0]; due[1] = owed[1] }

/* write_back::flush(). `due`: what was written before it began. It is in the file when flush()
 * returns without an error (`failed`). */
inline flush()
{
    if
    :: atomic { node_dirty == 0 -> failed = false; note_due() }
    :: atomic { node_dirty != 0 -> failed = false; note_due() }
        do
        :: begin();
            if
            :: what != 0 -> give_back_beside_cut();
                if
                :: what != 0 -> write_out(heard); break
#if defined(TRUNCATE) && !defined(MUTANT_CLEANS_BESIDE_CUT)
                :: what == 0 && !UNDER_WAY
#endif
                fi
#ifdef MUTANT_FLUSH_DOES_NOT_WAIT
            :: what == 0 -> break
#elif defined(MUTANT_FLUSH_TRUSTS_OTHERS)
            :: what == 0 && !(flags & CLEANING) -> break
#else
            :: IS_CLEAN -> break
            :: TRY_AGAIN
#endif
            fi
        od
    fi
}

/* property: as flush() says, checked at the next step of the caller */
inline owes_nothing()
{
    assert(failed || (file[0] >= due[0] && file[1] >= due[1]));
    due[0] = 0;
    due[1] = 0
}

/* The ghost of a page that is discarded: `taken` is what is dirty of it. */
inline discard_byte(i, taken)
{
    if
    :: ((taken) & BIT(i)) && file[i] != last[i] ->
        assert(!(users & ~BIT(me)));   /* property: not while another user could write it */
        lost[i] = true;
        owed[i] = 0
    :: else
    fi
}

/* write_back::discard() */
inline discard()
{
    begin_after_others();
    if
    :: what != 0 ->
        d_step {
            discard_byte(0, mask | (what & WHOLE -> ALL : 0));
            discard_byte(1, mask | (what & WHOLE -> ALL : 0));
            mask = 0;
#ifdef MUTANT_DISCARDED_IN_SILENCE
            heard = 0;
#endif
            discarded = true
        }
        end_ok();
        /* So that no lookup finds the page with bytes that the file does not have. */
        atomic {
            if
            :: resident && pins == 0 -> evict()
            :: else
            fi
        }
    :: what == 0
    fi
}

/* ---- Opens, syncs and closes. */

/* The host's open. The first opener of a version makes its inode state. */
inline open_host()
{
    atomic {
        if
        :: open_count != 0 && IS_TURN
        /* A new version has pages of its own. As there is one frame here, the open waits until the
         * frame has no pins. An actor that touches the old inode state after that can do so before,
         * too, and breaks an assertion of NODE_OPEN. */
        :: open_count == 0 && pins == 0 && IS_TURN ->
            assert(flags == 0 && mask == 0 && node_dirty == 0 && node_error == 0 && writers == 0);
            evict()
        fi;
#ifdef IN_TURN
        opened++;
#endif
        open_count++
    }
}

inline close_host()
{
    atomic {
        open_count--;
        if
        :: open_count == 0 ->
            /* property: nothing of a version without open files is dirty, and no error of it is
             * kept or unreported. The group that wrote the page back may still have its flag to
             * clear: no actor reads it any more. */
            assert(!(flags & ~CLEANING) && mask == 0 && node_dirty == 0);
            assert(node_error == 0 && writers == 0 && untold == 0);
            assert(lost[0] || file[0] == last[0]);
#ifdef TRUNCATE
            assert(lost[1] || file[1] == last[1] || file[1] == 0);
            assert(lost[1] || !after_cut || file[1] == last[1]);
            assert(before_cut != last[1] || file[1] == 0);
            /* property: the write that lengthened the file last is there. Past its end there is
             * nothing, also at the host. */
            assert(lost[1] || (covers -> file[1] == last[1] : file[1] == 0));
            assert(lost[1] || covers == reaches)
#else
            assert(lost[1] || file[1] == last[1])
#endif
        :: else
        fi
    }
}

/* join_writers(): counts the user, and then waits until the gate is open. */
inline join()
{
    atomic {
        assert(NODE_OPEN);
        writers++;
        if
#ifndef MUTANT_JOIN_DOES_NOT_WAIT
        :: writers & CLOSING
#endif
        :: else -> users = users | BIT(me); goto joined
        fi
    }
    atomic { !(writers & CLOSING) -> users = users | BIT(me) }
joined:
    skip
}

/* A sync, or a close that has flushed, takes the errors that were kept. */
#ifdef MUTANT_KEPT_IN_TWO_STEPS
inline take_kept() { atomic { owes_nothing(); assert(NODE_OPEN); heard = heard + node_error } node_error = 0 }
#else
inline take_kept() { atomic { owes_nothing(); assert(NODE_OPEN); heard = heard + node_error; node_error = 0 } }
#endif

/* The ghost of the end of a sync or close, which returns an error if it `heard` of failures.
 * property: each failure is returned once */
inline tell()
{
    assert(untold >= heard);
    untold = untold - heard;
    heard = 0;
    failed = false;
    why = 0
}

inline leave_write(i)
{
    if
    :: bits & BIT(i) ->
        writing[i]--;
        if
        :: KEPT(i) && stored[i] > owed[i] && stored[i] > file[i] -> owed[i] = stored[i]
        :: else
        fi;
        stored[i] = 0
    :: else
    fi
}

#ifdef TRUNCATE
inline see_flags()
{
    atomic { seen = flags; cleanings_seen = cleanings; notes_seen = notes; was_cleaned = flags & CLEANING }
}
#ifdef MUTANT_LOOKS_AT_FLAGS_ALONE
#define IS_CUT_NOW false
#else
#define IS_CUT_NOW UNDER_WAY
#endif
/* page_dirt::is_uncut() */
#ifdef MUTANT_CUT_IS_FINE
#define IS_UNCUT true
#else
#define IS_UNCUT (notes == notes_seen)
#endif
#define IS_UNTAKEN (cleanings == cleanings_seen && !was_cleaned)
#else
inline see_flags() { seen = flags }
#endif

inline raise()
{
    if
    :: (bits & BIT(1)) && !covers -> covers = true
    :: else
    fi
}

inline find_or_load()
{
    atomic { (resident || pins == 0) ->
        if
        :: resident
        :: else -> resident = true; page[0] = file[0]; page[1] = file[1]
        fi;
        pins++ }
}

proctype user(byte me; byte writes)
{
    byte bits, what, seen, heard;
    byte stored[2], copy[2], due[2];
    bool has_pin, failed, discarded;
    mtype why;   /* the reason for a flush */
#ifdef TRUNCATE
    byte before;        /* write_any(): wait_for_cut() */
    byte cleanings_seen, notes_seen;
    bool was_cleaned;   /* when its flags were seen */
    bool by_flags;      /* write_resident() */
    bool covered;       /* the size covered the bytes before they were marked */
#endif
#ifdef MUTANT_LAST_TRUSTS_ITS_FLUSH
    bool trusts;
#endif

    open_host();
#ifdef TRUNCATE
    /* O_TRUNC: before it joins. */
    if
    :: atomic { me == 1 -> cuts = false; goto cut }
    :: true
    fi;
joining:
#endif
#ifdef MUTANT_WRITES_BEFORE_JOIN
    users = users | BIT(me);
#else
    join();
#endif

next:
    if
    /* gwrite: the flags of the page that is to be found, or loaded */
    :: atomic { writes > 0 ->
            writes--;
            if
            :: bits = BIT(0); what = PARTIAL
#if BYTES == 2
            :: bits = BIT(1); what = PARTIAL
#endif
            :: bits = ALL; what = WHOLE
            fi;
            writing[0] = writing[0] + (bits & 1);
            writing[1] = writing[1] + (bits >> 1);
            see_flags()
            }
#ifdef TRUNCATE
    :: atomic { me == 1 && cuts -> cuts = false; goto cut }
#endif
    /* The last holder of a record flushes before it leaves. */
    :: atomic { writes == 0 && ALL_CUT -> why = leaving; goto flushing }
    :: atomic { writes == 0 && ALL_CUT -> goto leave }
#if SYNCS > 0
    :: atomic { syncs > 0 -> syncs--; why = syncing; goto flushing }
#endif
    fi;
    /* The user's pin. */
#ifdef TRUNCATE
    if
    :: atomic { resident -> by_flags = true; pins++ }
    :: atomic { !UNDER_WAY -> by_flags = false; before = cut_count }
        find_or_load()
    fi;
#else
    find_or_load();
#endif
write_page:
#ifdef TRUNCATE
    store_bytes();
    set_bits();
    if
    :: by_flags ->
        /* Before the marks. */
        covered = !(bits & BIT(1)) || covers;
        set_again();
        goto mark
    :: else -> seen = flags; set()
    fi;
    atomic { unpin(); has_pin = false }
    raise();
    if
#ifdef MUTANT_WRITE_DOES_NOT_LOOK
    :: true -> goto written
#else
    :: cut_count == before -> goto written
    :: cut_count != before -> goto once_more
#endif
    fi;
marked:
    /* set_again() has marked it. */
    if
    :: covered -> goto let_go_of_page
    :: else -> goto grow
    fi;
mark:
    /* finish_pinned() */
    set_bits();
    atomic { seen = flags }
    set();
    has_pin = false;
grow:
    raise();
#ifndef MUTANT_GROWS_WITHOUT_LOOK
    if
    :: IS_CUT_NOW -> goto cut_away
    :: !IS_CUT_NOW
    fi;
    if
    :: !IS_UNCUT -> goto cut_away
    :: IS_UNCUT && !covered && !IS_UNTAKEN -> covered = true; goto mark
    :: IS_UNCUT && (covered || IS_UNTAKEN)
    fi;
#endif
let_go_of_page:
    unpin();
    goto written;
cut_away:
    unpin();
once_more:
    /* All of it, by write_any(). */
    atomic { !UNDER_WAY -> by_flags = false; before = cut_count }
    find_or_load();
    see_flags();
    goto write_page;
written:
#elif defined(MUTANT_FLAGS_BEFORE_BYTES)
    set_bits();
    set_again();
    set();
marked:
    store_bytes();
#elif defined(MUTANT_FLAGS_BEFORE_BITS)
    store_bytes();
    set_again();
    set();
marked:
    set_bits();
#else
    store_bytes();
    set_bits();
    set_again();
    set();
marked:
#endif
    atomic {
#ifndef TRUNCATE
        unpin();
        has_pin = false;
#endif
        what = 0;
        leave_write(0);
        leave_write(1);
        bits = 0;
        goto next
    }

#ifdef TRUNCATE
/* truncate_file(): byte 1 goes, byte 0 stays. */
cut:
    atomic {
        cut_count++;
        if
        :: writing[1] == 0 -> before_cut = last[1]
        :: else
        fi
    }
#ifndef MUTANT_CUT_DOES_NOT_WAIT
    /* wait_for_write_backs() */
    !(flags & CLEANING);
#endif
    atomic { file[1] = 0; reaches = false }
    covers = false;
    /* cut_page() */
    atomic {
        if
        :: resident -> pins++
        :: else -> goto cut_end
        fi
    }
    begin_after_others();
    if
    :: what != 0 ->
        atomic {
            if
            :: what & WHOLE -> mask = BIT(0)
            :: else -> mask = mask & BIT(0)
            fi;
            bits = mask
        }
        if
#ifdef MUTANT_CUT_LEAVES_WHOLE
        :: bits != 0 -> end_failed((what | PARTIAL))
#else
        :: bits != 0 -> end_failed(((what & ~WHOLE) | PARTIAL))
#endif
        :: else -> end_ok()
        fi
    :: else
    fi;
    page[1] = 0;
#ifndef MUTANT_CUT_LEAVES_NO_NOTE
    notes++;   /* page_dirt::note_cut() */
#endif
    unpin();
cut_end:
    atomic {
        cut_count++;
        cut_done = true;
        if
        :: users & BIT(me) -> goto next
        :: else -> goto joining
        fi
    }
#endif

/* sync_file(), and leave_writers(): with the gate open, when other users may join and write, and
 * with the gate closed. */
flushing:
#ifdef MUTANT_HOST_CLOSED_FIRST
    if
    :: why == leaving -> close_host()
    :: else
    fi;
#endif
#ifdef MUTANT_KEPT_TAKEN_FIRST
    take_kept();
#endif
    flush();
#if defined(MUTANT_LAST_DOES_NOT_LOOK) || defined(MUTANT_LAST_TRUSTS_ITS_FLUSH)
flushed:
#endif
#ifdef MUTANT_GATE_OPENED_EARLY
    atomic {
        if
        :: why == last_one -> writers = writers & ~CLOSING
        :: else
        fi
    }
#endif
    if
#ifdef MUTANT_DISCARD_AT_ONCE
    :: why != syncing && failed -> discard()
#else
    :: why == last_one && failed -> discard()
#endif
    :: else
    fi;
#ifndef MUTANT_KEPT_TAKEN_FIRST
    take_kept();
#endif
    if
#if SYNCS > 0
    :: atomic { why == syncing -> tell(); goto next }
#endif
    :: why == leaving
    :: why == last_one -> goto opening
    fi;

leave:
#ifdef MUTANT_WRITES_BEFORE_JOIN
    join();
#endif
    /* If other writers are left, the dirty bytes are theirs. */
#ifdef MUTANT_LEAVE_IN_TWO_STEPS
    if
    :: writers == 1 -> atomic { users = users & ~BIT(me); writers-- }
    :: writers != 1 -> atomic { users = users & ~BIT(me); writers--; goto left }
    fi;
#else
    atomic {
        users = users & ~BIT(me);
        writers--;
        if
#ifdef MUTANT_SEVERAL_JUST_DECREMENT
        :: why != leaving -> goto left
#endif
        :: writers == 0
        :: else -> goto left
        fi
    }
#endif
#ifdef MUTANT_LAST_TRUSTS_ITS_FLUSH
    trusts = why == leaving;
#endif
    /* The last writer closes the gate and flushes again, even if it has just flushed. If a user has
     * joined since, that user is the last one later. */
#if defined(MUTANT_LEAVE_WITHOUT_GATE)
    why = last_one;
#elif defined(MUTANT_GATE_WITHOUT_CAS)
    atomic { writers = writers | CLOSING; why = last_one }
#else
    if
    :: atomic { writers == 0 -> writers = CLOSING; why = last_one }
    :: writers != 0 -> goto left
    fi;
#endif
#if defined(MUTANT_LAST_DOES_NOT_LOOK)
    goto flushed;
#elif defined(MUTANT_LAST_TRUSTS_ITS_FLUSH)
    if
    :: trusts -> goto flushed
    :: else
    fi;
#endif
    goto flushing;

opening:
#ifdef MUTANT_GATE_OPENED_BY_STORE
    writers = 0;
#else
    writers = writers & ~CLOSING;
#endif

left:
    atomic {
        assert(!discarded || heard > 0);   /* property: no byte is discarded without an error */
        tell();
        discarded = false;
#ifndef MUTANT_HOST_CLOSED_FIRST
        close_host()
#endif
    }
}

#if CLEANERS > 0
/* write_back::some(): for a group that needs frames, at any time. */
proctype cleaner(byte me)
{
    byte what, bits, seen, left = CLEANINGS;
    byte copy[2];
    bool failed;

    do
    :: left > 0 ->
        begin();
        if
        :: what != 0 -> give_back_beside_cut()
        :: else
        fi;
        if
        :: what != 0 -> write_out(node_error)
        :: else
        fi;
        atomic { left--; failed = false }
    :: left == 0 -> break
    od
}
#endif

/* A group that needs a frame, and a program that writes the file. */
proctype others()
{
    do
    :: atomic { evictions > 0 && resident && pins == 0 -> evictions--; evict() }
    /* Any byte that is not being written, nor dirty: then nothing of the page may be dirty. */
    :: atomic { outsiders > 0 && !outside[0] && writing[0] == 0 && (last[0] == 0 || flags == 0) -> outsiders--; outside[0] = true }
#if BYTES == 2
    :: atomic { outsiders > 0 && !outside[1] && writing[1] == 0 && (last[1] == 0 || flags == 0) -> outsiders--; outside[1] = true }
#endif
    :: _nr_pr == 2 -> break   /* no other actor is left */
    od
}

/* Starts all actors. When all have ended, checks that nothing is left over. */
init
{
    atomic {
        run others();   /* ends last, so it starts first: processes end in reverse order */
        run user(0, WRITES0);
        run user(1, WRITES1);
#if USERS > 2
        run user(2, WRITES2);
#endif
#if CLEANERS > 0
        run cleaner(3);
#endif
#if CLEANERS > 1
        run cleaner(4)
#endif
    }
    _nr_pr == 1;
    d_step {
        assert(flags == 0 && mask == 0 && pins == 0 && node_dirty == 0 && !NODE_OPEN);
        assert(lost[0] || !resident || page[0] == file[0]);
        assert(lost[1] || !resident || page[1] == file[1])
    }
}
