/*
 * append.pml - appends, and marks of stores in a mapping, beside truncations. Each takes place as a
 * whole before a truncation or after it.
 *
 * Real code: include/gpufs/file/size_use.cuh (begin_size_use, end_size_use, wait_for_size_users,
 * note_other_writes), file/write_bytes.cuh (give_place_back, raise_size), file/truncate.cuh
 * (truncate_file), file/write_place.cuh, file/mapped_writes.cuh. dirty.pml has the other writes, and
 * the write-backs meanwhile.
 *
 * A file of single bytes, which has two at first. An append adds two bytes in two steps, and may
 * fail between them for lack of a frame. Markers mark the bytes below the size that they read, as
 * gmsync does. Truncations make the file two bytes long, or empty it. Another writer, which opens
 * the file meanwhile, writes one byte behind the two. One step is one access to shared memory, as in
 * dirty.pml.
 *
 * Configuration: APPENDS (1 or 2), CUTS (0 to 2), MARKERS (0 or 1), OTHERS (0 or 1; only without
 * CUTS), FAULTS (appends that fail in the middle).
 */

#ifndef APPENDS
#define APPENDS 2
#endif
#ifndef CUTS
#define CUTS 1
#endif
#ifndef MARKERS
#define MARKERS 1
#endif
#ifndef OTHERS
#define OTHERS 0
#endif
#ifndef FAULTS
#define FAULTS 0
#endif

#define RESIZING 16   /* beside the number of users */
#define FIRST    9    /* the writer of the bytes that are there at first */
#define OTHER    8    /* the writer at another place than the end */
#define AT       3    /* where it writes */
#define BYTES    8

byte users;           /* inode_state::size_users */
bool noted;           /* inode_state::other_writes */
byte size = 2;        /* inode_state::size */
byte page[BYTES];     /* the writer of the byte; 0: none */
bool marked[BYTES];   /* to be written back */
byte host_size = 2;

/* Ghosts and budgets. */
byte faults = FAULTS;
byte place[3];
bool placed[3], whole[3], was_cut[3], wrote;

/* begin_size_use() */
inline enter()
{
    do
#ifdef MUTANT_LOOKS_BEFORE_IT_COUNTS
    :: !(users & RESIZING); users++; break
#else
    :: atomic { seen = users; users++ }
        if
        :: !(seen & RESIZING) -> break
        :: else -> users--; !(users & RESIZING)
        fi
#endif
    od
}
inline leave() { atomic { assert((users & ~RESIZING) > 0); users-- } }

/* wait_for_size_users(), without its second wait */
inline stop_size_users()
{
    do
    :: atomic { seen = users; users = users | RESIZING }
        if
        :: !(seen & RESIZING) -> break
        :: else -> !(users & RESIZING)
        fi
    od
}

inline note_other_writes()
{
    if
    :: noted
    :: !noted ->
#ifdef MUTANT_NOTES_BESIDE_USERS
        noted = true
#else
        stop_size_users();
        users == RESIZING;
        noted = true;
        users = users & ~RESIZING
#endif
    fi
}

inline put(i)
{
    page[i] = me;
    marked[i] = true;
    atomic {   /* raise_size() */
        if
        :: size < i + 1 -> size = i + 1
        :: else
        fi
    }
}

proctype append(byte me)
{
    byte seen, at;

#ifndef MUTANT_APPENDS_WITHOUT_GATE
    enter();
#endif
    atomic { at = size; size = size + 2; place[me] = at; placed[me] = true; assert(size <= BYTES) }
    put(at);
    if
    :: put(at + 1); whole[me] = true
    :: atomic { faults > 0 -> faults-- }
#ifdef MUTANT_PLACE_GIVEN_BACK_BY_STORE
        size = at + 1
#else
        /* give_place_back() */
#ifdef MUTANT_PLACE_GIVEN_BACK_TO_OTHERS
        seen = 0;
#else
        seen = noted;
#endif
        atomic {
            if
            :: !seen && size == at + 2 -> size = at + 1
            :: else
            fi
        }
#endif
    fi;
    at = 0;
#ifndef MUTANT_APPENDS_WITHOUT_GATE
    leave();
#endif
    skip
}

#if MARKERS > 0
proctype marker()
{
    byte seen, end;

    note_other_writes();   /* as gmmap_write does */
#ifndef MUTANT_MARKS_WITHOUT_GATE
    enter();
#endif
    end = size;
    do
    :: end > 0 -> end--; marked[end] = true
    :: end == 0 -> break
    od;
#ifndef MUTANT_MARKS_WITHOUT_GATE
    leave();
#endif
    skip
}
#endif

#if OTHERS > 0
/* An open without O_APPEND (note_other_writes()), and a write. */
proctype other(byte me)
{
    byte seen;

    note_other_writes();
    page[AT] = me;
    marked[AT] = true;
    /* raise_size() looks first */
    if
    :: size >= AT + 1
    :: else ->
        atomic {
            if
            :: size < AT + 1 -> size = AT + 1
            :: else
            fi
        }
    fi;
    /* property: the file has the byte when the write returns, and later */
    assert(size > AT);
    wrote = true
}
#endif

/* truncate_file() */
proctype truncation(byte cut)
{
    byte seen, i;

    stop_size_users();
#ifndef MUTANT_CUTS_BESIDE_USERS
    users == RESIZING;
#endif
    host_size = cut;
    d_step {
        /* A file that becomes longer has zeros there. */
        i = size;
        do
        :: i < cut -> page[i] = FIRST; i++
        :: else -> break
        od;
        size = cut;
        /* What was appended before this is gone. */
        i = 1;
        do
        :: i <= APPENDS ->
            if
            :: placed[i] && place[i] >= cut -> was_cut[i] = true
            /* cut in the middle */
            :: placed[i] && place[i] < cut && place[i] + 2 > cut -> whole[i] = false
            :: else
            fi;
            i++
        :: else -> break
        od
    }
#ifdef MUTANT_OPENS_BEFORE_IT_CUTS_PAGES
    users = users & ~RESIZING;
#endif
    i = cut;
    do
    :: i < BYTES -> atomic { page[i] = 0; marked[i] = false; i++ }
    :: i == BYTES -> break
    od;
#ifdef MUTANT_OPENS_BY_STORE
    users = 0;
#elif !defined(MUTANT_OPENS_BEFORE_IT_CUTS_PAGES)
    users = users & ~RESIZING;
#endif
    skip
}

/* The other writer may write to the place of an append, before or after it. */
#define HAS(me, i) (page[i] == me || page[i] == OTHER)
#define HAS_ALL(me) (HAS(me, place[me]) && HAS(me, place[me] + 1) && place[me] + 2 <= size)

inline check(me)
{
    /* property: an append that returned all of its bytes is there as a whole, or a truncation came
     * after it and nothing is left */
    if
    :: whole[me] && !was_cut[me] -> assert(HAS_ALL(me))
    :: was_cut[me] ->
        i = 0;
        do
        :: i < BYTES -> assert(page[i] != me); i++
        :: i == BYTES -> break
        od
    :: else
    fi
}

init
{
    byte i;

    atomic {
        page[0] = FIRST;
        page[1] = FIRST;
        run append(1);
#if APPENDS > 1
        run append(2);
#endif
#if MARKERS > 0
        run marker();
#endif
#if OTHERS > 0
        run other(OTHER);
#endif
#if CUTS > 0
        run truncation(2);
#endif
#if CUTS > 1
        run truncation(0)
#endif
    }
    _nr_pr == 1;
    d_step {
        assert(users == 0);
        /* property: no append that fails hides what another group wrote */
        assert(!wrote || size > AT);
        check(1);
#if APPENDS > 1
        check(2);
#endif
        i = 0;
        do
        :: i < BYTES ->
            /* property: nothing past the end is written back */
            assert(i < size || !marked[i]);
            /* property: every byte of the file has a writer, except the end of an append that
             * failed, and what lies before the other write */
            assert(i >= size || page[i] != 0 || faults < FAULTS || wrote);
            i++
        :: i == BYTES -> break
        od
    }
}
