/*
 * append.pml - appends, and marks of stores in a mapping, beside truncations. Each takes place as a
 * whole before a truncation or after it.
 *
 * Real code: include/gpufs/file/write_bytes.cuh (begin_size_use, end_size_use,
 * wait_for_size_users, give_place_back, raise_size), file/truncate.cuh (truncate_file),
 * include/gpufs/write.cuh (gwrite, gmsync). dirty.pml has the other writes, and the write-backs
 * meanwhile.
 *
 * A file of single bytes, which has two at first. An append adds two bytes in two steps, and may
 * fail between them for lack of a frame. Markers mark the bytes below the size that they read, as
 * gmsync does. Truncations make the file two bytes long, or empty it. One step is one access to
 * shared memory, as in dirty.pml.
 *
 * Configuration: APPENDS, CUTS (1 or 2 of each), MARKERS (0 or 1), FAULTS (appends that fail in the
 * middle).
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
#ifndef FAULTS
#define FAULTS 0
#endif

#define RESIZING 16   /* beside the number of users */
#define FIRST    9    /* the writer of the bytes that are there at first */
#define BYTES    6

byte users;           /* inode_state::size_users */
byte size = 2;        /* inode_state::size */
byte page[BYTES];     /* the writer of the byte; 0: none */
bool marked[BYTES];   /* to be written back */
byte host_size = 2;

/* Ghosts and budgets. */
byte faults = FAULTS;
byte place[3];
bool placed[3], whole[3], was_cut[3];

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
        atomic {   /* give_place_back() */
            if
            :: size == at + 2 -> size = at + 1
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

/* truncate_file() */
proctype truncation(byte cut)
{
    byte seen, i;

    do   /* wait_for_size_users() */
    :: atomic { seen = users; users = users | RESIZING }
        if
        :: !(seen & RESIZING) -> break
        :: else -> !(users & RESIZING)
        fi
    od;
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

#define HAS_ALL(me) (page[place[me]] == me && page[place[me] + 1] == me && place[me] + 2 <= size)

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
        run truncation(2);
#if CUTS > 1
        run truncation(0)
#endif
    }
    _nr_pr == 1;
    d_step {
        assert(users == 0);
        check(1);
#if APPENDS > 1
        check(2);
#endif
        i = 0;
        do
        :: i < BYTES ->
            /* property: nothing past the end is written back, except where an append has failed and
             * another actor has stored in its place */
            assert(i < size || !marked[i] || faults < FAULTS);
            /* property: every byte of the file has a writer, except the end of an append that
             * failed */
            assert(i >= size || page[i] != 0 || faults < FAULTS);
            i++
        :: i == BYTES -> break
        od
    }
}
