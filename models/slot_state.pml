/*
 * slot_state.pml - the life of a slot: frames of the page cache, and open-file records
 * (-DOPEN_FILES).
 *
 * Real code: include/gpufs/cache/slot_state.cuh (state word), hash_index.cuh (buckets, latches,
 * passed counters), ring.cuh (choice of a victim), page_cache.cuh (acquire, load, unpin, reclaim).
 * README.md maps steps to files.
 *
 * Granularity: one step of an actor is one access to shared memory (one load, one store or one
 * atomic read-modify-write), together with thread-private work and ghost variables. `atomic` and
 * `d_step` never join two shared accesses, except in the three places marked ABSTRACTION, which say
 * why nothing is lost.
 *
 * The model leaves out: weak memory (spin is sequentially consistent; the code argues the orders,
 * and ThreadSanitizer tests them on the CPU device), the overflow of counters, dirty pages and
 * write-back, versions, groups of more than one thread, and the claim by the holder of the only pin
 * (for other actors it is a claim without pins).
 *
 * Polling is a blocking wait, so a wait that no actor ends is an invalid end state. An endless run
 * can only be a livelock (there are no progress labels: -DNP finds every cycle).
 *
 * Configuration (check.sh sets it): SLOTS, KEYS, BUCKETS, CELLS, and the operations of each actor
 * OPS0, OPS1, OPS2. BUCKETS * CELLS >= SLOTS is required, by the code too: an inserter's own slot
 * has no entry yet, so a cell is empty.
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef KEYS
#define KEYS 2
#endif
#ifndef BUCKETS
#define BUCKETS 1
#endif
#ifndef CELLS
#define CELLS 2
#endif
#ifndef OPS0
#define OPS0 1
#endif
#ifndef OPS1
#define OPS1 1
#endif
#ifndef OPS2
#define OPS2 0   /* 0: no third actor */
#endif
#ifndef FAULTS
#define FAULTS 255   /* loads that may fail; 255: any */
#endif
#ifndef PREFILL
#define PREFILL 1   /* slots resident at the start: slot i holds key i+1 */
#endif

/* States of a slot. FREE is 0 so that a zeroed arena is a valid one. */
#define FREE     0
#define LOADING  1
#define RESIDENT 2
#define EVICTING 3

#define NO_SLOT  255
#define NOTHING  0     /* no key, no bytes, no entry, no error, no owner */
#define RETRY    100   /* slot.error of a slot that was given back: nothing failed, look again */
/* slot.error after a failed load of key k; the key stands in, so that mix-ups show */
#define FAILED(k) (k)

/* Keys are 1..KEYS. The home of the last key is the last bucket, and the home of all others is
 * bucket 0. With one cell per bucket the first two keys collide, and one overflows into the home
 * bucket of the last key. */
#define HOME(k) ((k) == KEYS && KEYS > 2 -> BUCKETS - 1 : 0)
#define NEXT(b) (((b) + 1) % BUCKETS)

/* An entry is (tag, slot). All keys share one tag, the worst case: each lookup meets the slots of
 * other keys. */
#define ENTRY(s) ((s) + 1)
#define SLOT(e)  ((e) - 1)

byte state[SLOTS];        /* with pins: one atomic word */
byte pins[SLOTS];
byte key[SLOTS];
byte bytes[SLOTS];        /* the key whose complete bytes the slot holds; NOTHING: partly written */
byte error[SLOTS];
byte cell[BUCKETS * CELLS];
byte passed[BUCKETS];
bool latched[BUCKETS];

/* Ghosts: not in the code. */
byte owner[SLOTS];        /* actor that owns the slot in evicting or loading */
byte faults = FAULTS;
#ifdef OPEN_FILES
byte users[SLOTS];        /* callers that hold an accepted pin */
bool host_open[SLOTS];    /* a host handle opened by the load of this slot is not yet closed */
#endif

#define LIVE(s) (state[s] == LOADING || state[s] == RESIDENT)

inline take_ownership(s)
{
    assert(owner[s] == NOTHING);   /* property: no slot has two owners */
    owner[s] = me
}

/* From here on the owner may overwrite the bytes, and an error that is read is an old one. Both
 * ghosts mark the earliest moment of harm. */
inline own(s)
{
    state[s] = EVICTING;
    bytes[s] = NOTHING;
    error[s] = NOTHING;
    take_ownership(s)
}

inline drop_ownership(s)
{
    assert(owner[s] == me);
    owner[s] = NOTHING
}

inline lock(b)   { atomic { !latched[b] -> latched[b] = true } }
inline unlock(b) { atomic { assert(latched[b]); latched[b] = false } }

/* Takes the entry of slot `s`, which this actor owns, out of the index. */
inline remove_entry(s)
{
    home = HOME(key[s]);   /* key is stable: only the owner writes it */
    lock(home);
    /* ABSTRACTION: the search is one step. Writers of other homes may change other cells meanwhile.
     * But the entry is unique and stays where it is, and its own counts keep the way to it open,
     * whenever each cell is read. */
    d_step {
        b = home;
        c = 0;
        do
#ifdef MUTANT_REMOVE_BY_TAG
        :: c < CELLS && cell[b * CELLS + c] != NOTHING -> break
        :: c < CELLS && cell[b * CELLS + c] == NOTHING -> c++
#else
        :: c < CELLS && cell[b * CELLS + c] == ENTRY(s) -> break
        :: c < CELLS && cell[b * CELLS + c] != ENTRY(s) -> c++
#endif
        :: c == CELLS ->
            /* property: a slot's entry can be reached */
            assert(passed[b] != 0 && NEXT(b) != home);
            b = NEXT(b);
            c = 0
        od
    }
    cell[b * CELLS + c] = NOTHING;
    /* The counts of the buckets passed over go down after the entry is gone. */
    do
    :: atomic { home != b ->
#if defined(MUTANT_PASSED_IS_FLAG)
            passed[home] = 0;
#elif !defined(MUTANT_PASSED_NOT_COUNTED)
            assert(passed[home] > 0);
            passed[home]--;
#endif
            home = NEXT(home) }
    :: atomic { home == b -> break }
    od;
    home = HOME(key[s]);
    unlock(home);
    b = 0; c = 0; home = 0
}

/* Drops a pin, accepted or transient. For open files: the actor that drops the last pin of a
 * resident record closes it. */
inline unpin(s)
{
#ifndef OPEN_FILES
    atomic { assert(pins[s] > 0); pins[s]-- }
#else
    atomic { assert(pins[s] > 0); pins[s]--; last = (state[s] == RESIDENT && pins[s] == 0) }
    close_if_last(s)
#endif
}

/* Drops a pin after a load that failed: no other actor can have made a pinned slot resident. */
inline unpin_unloaded(s)
{
    atomic { assert(pins[s] > 0 && state[s] != RESIDENT); pins[s]-- }
}

#ifdef OPEN_FILES
inline close_if_last(s)
{
    if
    :: last ->
        last = false;
        /* Between fetch_sub and CAS the record may be reused. The CAS then closes its new content,
         * which has no pins. */
#ifdef MUTANT_CLOSE_WITHOUT_CAS
        atomic { own(s); won = true }
#else
        atomic {
            if
            :: state[s] == RESIDENT && pins[s] == 0 -> own(s); won = true
            :: else
            fi
        }
#endif
        if
        :: won ->
            won = false;
#ifdef MUTANT_FREE_BEFORE_CLOSE
            remove_entry(s);
            atomic { state[s] = FREE; drop_ownership(s) }
            close_handle(s)
#else
            remove_entry(s);
            close_handle(s);
            atomic { state[s] = FREE; drop_ownership(s) }
#endif
        :: else
        fi
    :: else
    fi
}

/* Posts the close of the host handle, without a wait (channel.pml). The code copies the handle,
 * frees the record, and then posts. */
inline close_handle(s)
{
    atomic {
        assert(users[s] == 0);   /* property: never closed under a caller */
        assert(host_open[s]);    /* property: closed once per successful open */
        host_open[s] = false
    }
}
#endif

/* Lock-free search for `k`. Sets `found` and holds a pin on it, or sets found to NO_SLOT. */
inline lookup(k)
{
    b = HOME(k);
    home = b;
    c = 0;
    found = NO_SLOT;
    do
    :: c < CELLS ->
        atomic { e = cell[b * CELLS + c]; c++ }
        if
        :: e != NOTHING ->
            found = SLOT(e);
            e = NOTHING;
            /* The entry may be stale by now: the slot may have been freed, even reused for this
             * very key. */
            atomic { pins[found]++; old = state[found] }
            if
#ifdef MUTANT_PIN_WITHOUT_STATE
            :: true ->
#else
            :: old == LOADING || old == RESIDENT ->
#endif
                old = 0;
#ifdef MUTANT_PIN_WITHOUT_KEY
                break
#else
                atomic {
                    if
                    :: key[found] == k -> accept_pin(found); break
                    :: else
                    fi
                }
#endif
            :: else
            fi;
            old = 0;
            save_scan();
#if defined(OPEN_FILES) && defined(MUTANT_ROLLBACK_WITHOUT_CLOSE)
            pins[found]--;
#else
            unpin(found);
#endif
            restore_scan();
            found = NO_SLOT
        :: else
        fi
    :: c == CELLS ->
        atomic {
            if
            :: passed[b] != 0 && NEXT(b) != home -> b = NEXT(b); c = 0
            :: else -> break
            fi
        }
    od;
    b = 0; c = 0; home = 0; e = NOTHING; old = 0
}

#ifdef OPEN_FILES
/* unpin may remove an entry, which uses the scan's variables. */
inline save_scan()    { saved_b = b; saved_c = c; saved_home = home }
inline restore_scan() { b = saved_b; c = saved_c; home = saved_home; saved_b = 0; saved_c = 0; saved_home = 0 }
inline accept_pin(s)  { users[s]++ }
inline forget_pin(s)  { assert(users[s] > 0); users[s]-- }
#else
inline save_scan()    { skip }
inline restore_scan() { skip }
inline accept_pin(s)  { skip }
inline forget_pin(s)  { skip }
#endif

/*
 * ABSTRACTION: the walk of the ring is one step that takes any slot on which the CAS succeeds, or
 * gives up. It covers every order of the cursor, every policy and every bound on the passes. A CAS
 * that fails is another round of the walk. The model leaves out when ENOBUFS is justified: giving
 * up is always possible.
 */
#ifdef MUTANT_EVICT_PINNED
#define EVICTABLE(s) (state[s] == RESIDENT)
#else
#define EVICTABLE(s) (state[s] == RESIDENT && pins[s] == 0)
#endif
#ifdef MUTANT_REUSE_PINNED_FREE
#define TAKEABLE(s) (state[s] == FREE)
#else
#define TAKEABLE(s) (state[s] == FREE && pins[s] == 0)
#endif

inline claim(s)
{
#ifdef MUTANT_CLAIM_WITHOUT_CAS
    skip /* the store is a step of its own, below */
#else
    own(s)
#endif
}

inline allocate()
{
    atomic {
        if
        :: TAKEABLE(0) -> mine = 0; claim(0)
#if SLOTS > 1
        :: TAKEABLE(1) -> mine = 1; claim(1)
#endif
#if SLOTS > 2
        :: TAKEABLE(2) -> mine = 2; claim(2)
#endif
#ifndef OPEN_FILES
        /* A resident open-file record without pins belongs to the unpin that is about to close it.
         */
        :: EVICTABLE(0) -> mine = 0; victim = true; claim(0)
#if SLOTS > 1
        :: EVICTABLE(1) -> mine = 1; victim = true; claim(1)
#endif
#if SLOTS > 2
        :: EVICTABLE(2) -> mine = 2; victim = true; claim(2)
#endif
#endif
        :: mine = NO_SLOT
        fi
    }
#ifdef MUTANT_CLAIM_WITHOUT_CAS
    if
    :: mine != NO_SLOT -> atomic { own(mine) }
    :: else
    fi;
#endif
#ifndef OPEN_FILES
    if
    :: victim ->
        victim = false;
        remove_entry(mine)
    :: else
    fi
#else
    skip
#endif
}

/* Under the latch of home(k): is a live slot of `k` in the index? Sets `found`. */
inline rescan(k)
{
    /* ABSTRACTION: one step. Entries of `k` come and go only under this latch. Only the state of
     * its live slot can change meanwhile, to evicting, and each outcome is that of a scan at some
     * moment. */
    d_step {
        b = home;
        c = 0;
        found = NO_SLOT;
        do
        :: c < CELLS ->
            e = cell[b * CELLS + c];
            if
            :: e != NOTHING ->
                if
#ifdef MUTANT_RESCAN_COUNTS_EVICTING
                :: state[SLOT(e)] != FREE && key[SLOT(e)] == k -> found = SLOT(e); break
#else
                :: LIVE(SLOT(e)) && key[SLOT(e)] == k -> found = SLOT(e); break
#endif
                :: else
                fi
            :: else
            fi;
            c++
        :: c == CELLS && passed[b] != 0 && NEXT(b) != home -> b = NEXT(b); c = 0
        :: c == CELLS && !(passed[b] != 0 && NEXT(b) != home) -> break
        od;
        b = 0; c = 0; e = NOTHING
    }
}

/* Only a slot that is sure to be loaded may show `loading`. A lookup that read an entry long ago
 * may pin the slot by its key alone, and then waits for the load. Hence the change comes after the
 * re-scan. Otherwise (-DLOADING_BEFORE_LATCH, verified too) a slot that is given back must carry
 * the error RETRY. The slot may have other pins: a transient pin can outlive any change of state.
 */
inline start_loading()
{
    atomic { assert(state[mine] == EVICTING); state[mine] = LOADING; pins[mine]++ }
}

/* Under the latch of home(k): stores the entry of slot `mine`. */
inline insert(k)
{
    b = home;
    c = 0;
    do
    :: c < CELLS ->
        /* CAS empty -> entry: an inserter with another home and another latch may want the cell. */
        atomic {
            if
            :: cell[b * CELLS + c] == NOTHING ->
                cell[b * CELLS + c] = ENTRY(mine);
                assert_only_live(k);
                break
            :: else -> c++
            fi
        }
    :: c == CELLS ->
#if defined(MUTANT_PASSED_IS_FLAG)
        passed[b] = 1;
#elif !defined(MUTANT_PASSED_NOT_COUNTED)
        passed[b]++;
#endif
        b = NEXT(b);
        c = 0;
        if
        :: b == home ->
            /* Every bucket looked full, though never all at once. Take the counts back and start
             * again. */
            do
            :: atomic { passed[b]--; b = NEXT(b); if :: b == home -> break :: else fi }
            od
        :: else
        fi
    od;
    b = 0; c = 0
}

/* Property: at most one loading or resident slot per key can be reached through the index. */
inline assert_only_live(k)
{
    d_step {
        e = 0;
        live = 0;
        do
        :: e < BUCKETS * CELLS ->
            if
            :: cell[e] != NOTHING ->
                if
                :: LIVE(SLOT(cell[e])) && key[SLOT(cell[e])] == k -> live++
                :: else
                fi
            :: else
            fi;
            e++
        :: else -> break
        od;
        assert(live == 1);
        live = 0;
        e = NOTHING
    }
}

proctype actor(byte me; byte ops)
{
    byte k, b, c, home, e, old, live;
    byte found = NO_SLOT, mine = NO_SLOT;
#ifndef OPEN_FILES
    bool victim;
#else
    byte saved_b, saved_c, saved_home;
    bool last, won;
#endif

next_operation:
    atomic {
        if
        :: ops == 0 -> goto finished
        :: ops > 0 -> ops--
        fi;
        if
        :: k = 1
#if KEYS > 1
        :: k = 2
#endif
#if KEYS > 2
        :: k = 3
#endif
#ifndef OPEN_FILES
        :: goto reclaim
#endif
        fi
    }

acquire:
    lookup(k);
    if
    :: found != NO_SLOT -> goto pinned
    :: else
    fi;

    allocate();
    if
    :: mine == NO_SLOT -> goto operation_done   /* ENOBUFS, nothing held */
    :: else
    fi;
    key[mine] = k;
#ifdef LOADING_BEFORE_LATCH
    start_loading();
#endif
    home = HOME(k);
#ifndef MUTANT_INSERT_WITHOUT_LATCH
    lock(home);
#endif
#ifdef MUTANT_NO_RESCAN
    found = NO_SLOT;
#else
    rescan(k);
#endif
    if
    :: found != NO_SLOT ->
        found = NO_SLOT;
#ifndef MUTANT_INSERT_WITHOUT_LATCH
        unlock(home);
#endif
        home = 0;
#ifdef LOADING_BEFORE_LATCH
        /* A lookup with a stale entry may have pinned this slot and wait for its load. RETRY makes
         * it look again. */
#ifndef MUTANT_GIVE_BACK_SILENT
        error[mine] = RETRY;
#endif
        atomic { assert(state[mine] == LOADING && pins[mine] > 0); state[mine] = FREE; pins[mine]--;
            drop_ownership(mine) }
#else
        atomic { assert(state[mine] == EVICTING); state[mine] = FREE; drop_ownership(mine) }
#endif
        mine = NO_SLOT;
        goto acquire
    :: else
    fi;
#ifndef LOADING_BEFORE_LATCH
    start_loading();
#endif
    insert(k);
#if !defined(MUTANT_INSERT_WITHOUT_LATCH) && !defined(MUTANT_LATCH_HELD_OVER_LOAD)
    unlock(home);
#endif
    home = 0;

#ifdef MUTANT_PUBLISH_BEFORE_BYTES
    atomic { state[mine] = RESIDENT; drop_ownership(mine) }
    atomic { bytes[mine] = k; found = mine; mine = NO_SLOT; goto resident }
#endif
    if
#ifdef OPEN_FILES
    :: atomic { bytes[mine] = k; assert(!host_open[mine]); host_open[mine] = true }
#else
    :: bytes[mine] = k;
#endif
#ifdef MUTANT_LATCH_HELD_OVER_LOAD
        unlock(HOME(k));
#endif
#ifdef MUTANT_PUBLISH_BY_STORE
        atomic { state[mine] = RESIDENT; pins[mine] = 1; drop_ownership(mine);
#else
        atomic { assert(state[mine] == LOADING); state[mine] = RESIDENT; drop_ownership(mine);
#endif
            accept_pin(mine);
            found = mine; mine = NO_SLOT }
        goto resident
    :: atomic { faults > 0 -> if :: faults < 255 -> faults-- :: else fi }
    fi;

    /* The load failed. */
#ifndef MUTANT_ERROR_AFTER_STATE
    error[mine] = FAILED(k);
#endif
    atomic { assert(state[mine] == LOADING); state[mine] = EVICTING }
#ifdef MUTANT_ERROR_AFTER_STATE
    error[mine] = FAILED(k);
#endif
#ifndef MUTANT_FAILED_LOAD_KEEPS_ENTRY
    remove_entry(mine);
#endif
    atomic { assert(state[mine] == EVICTING); state[mine] = FREE; drop_ownership(mine) }
    unpin_unloaded(mine);
    mine = NO_SLOT;
    goto operation_done

pinned:
    atomic {
        state[found] != LOADING ->
        if
        :: state[found] == RESIDENT -> goto resident
        :: else
        fi
    }
    atomic {
        old = error[found];
        /* property: an error comes from the failed load of this key that the actor waited for */
#ifdef LOADING_BEFORE_LATCH
        assert(old == RETRY || old == FAILED(k))
#else
        assert(old == FAILED(k))
#endif
        forget_pin(found)
    }
    unpin_unloaded(found);
    found = NO_SLOT;
#ifdef LOADING_BEFORE_LATCH
    if
    :: old == RETRY -> old = 0; goto acquire
    :: else
    fi;
#endif
    old = 0;
    goto operation_done;

resident:
    /* property: the bytes under a pin are the key's, complete, and do not change until the unpin */
    assert(state[found] == RESIDENT && key[found] == k && bytes[found] == k);
    atomic { assert(state[found] == RESIDENT && key[found] == k && bytes[found] == k); forget_pin(found) }
    unpin(found);
    found = NO_SLOT;
    goto operation_done;

#ifndef OPEN_FILES
reclaim:
    atomic {
        if
        :: EVICTABLE(0) -> mine = 0; claim(0)
#if SLOTS > 1
        :: EVICTABLE(1) -> mine = 1; claim(1)
#endif
#if SLOTS > 2
        :: EVICTABLE(2) -> mine = 2; claim(2)
#endif
        :: goto operation_done
        fi
    }
#ifdef MUTANT_CLAIM_WITHOUT_CAS
    atomic { own(mine) }
#endif
#ifdef MUTANT_FREE_BEFORE_REMOVE
    atomic { state[mine] = FREE; drop_ownership(mine) }
    remove_entry(mine);
#else
    remove_entry(mine);
    atomic { assert(state[mine] == EVICTING); state[mine] = FREE; drop_ownership(mine) }
#endif
    mine = NO_SLOT;
#endif

operation_done:
    k = 0;
    goto next_operation;

finished:
    skip
}

/* Starts the actors and, when all have ended, checks that nothing is left over. */
init
{
    byte s, i, b, entries;

    d_step {
#ifndef OPEN_FILES
        do
        :: s < PREFILL ->
            state[s] = RESIDENT;
            key[s] = s + 1;
            bytes[s] = s + 1;
            b = HOME(s + 1);
            i = 0;
            do
            :: i < CELLS && cell[b * CELLS + i] == NOTHING -> cell[b * CELLS + i] = ENTRY(s); break
            :: i < CELLS && cell[b * CELLS + i] != NOTHING -> i++
            :: i == CELLS -> passed[b]++; b = NEXT(b); i = 0
            od;
            s++
        :: else -> break
        od;
#endif
        s = 0; i = 0; b = 0
    }
    atomic {
        run actor(1, OPS0);
        run actor(2, OPS1);
        if
        :: OPS2 > 0 -> run actor(3, OPS2)
        :: else
        fi
    }
    _nr_pr == 1;
    d_step {
        do
        :: s < SLOTS ->
            assert(pins[s] == 0 && owner[s] == NOTHING);
            assert(state[s] == FREE || state[s] == RESIDENT);
            entries = 0;
            i = 0;
            do
            :: i < BUCKETS * CELLS ->
                if
                :: cell[i] == ENTRY(s) ->
                    entries++;
                    /* take this entry's counts away; all must come out zero */
                    b = HOME(key[s]);
                    do
                    :: b != i / CELLS -> assert(passed[b] > 0); passed[b]--; b = NEXT(b)
                    :: else -> break
                    od
                :: else
                fi;
                i++
            :: else -> break
            od;
            assert(entries == (state[s] == RESIDENT -> 1 : 0));
#ifdef OPEN_FILES
            /* property: no record left open */
            assert(state[s] == FREE && !host_open[s] && users[s] == 0);
#endif
            s++
        :: else -> break
        od;
        b = 0;
        do
        :: b < BUCKETS -> assert(!latched[b] && passed[b] == 0); b++
        :: else -> break
        od
    }
}
