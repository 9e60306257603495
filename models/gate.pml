/*
 * gate.pml - what a program submits, beside turns that take its memory off the GPU. No work runs,
 * and no call changes allocations, while the memory is out or moves.
 *
 * Real code: gdev/interposer/gate.cpp (submission, memory_pass, close_gate, wait_for_submissions,
 * open_gate, wait_until_open, park_memory, unpark_memory), turn_service.cpp (is_idle, leave, enter),
 * gated_calls.cpp (begins_capture, end_capture), handles.cpp (unmap).
 *
 * Store buffering is modelled for what it is about: the plain stores to `inside` of a thread's own
 * line stay in a buffer of the thread until they are flushed at some time, and its loads pass
 * them. membarrier(2) flushes the buffers of all threads. Threads that share a line (-DSHARED) use
 * locked instructions. A wait of the turn service may end without success at any time, because
 * its patience is over (GIVES_UP); then the gate opens.
 *
 * Configuration: THREADS, OPS (calls of each), TURNS, GIVES_UP (0: patience has no end), FENCES
 * (the kernel has no membarrier(2), and each submission has a fence), SHARED, PARKS (calls that give
 * memory back do not wait for a turn: a handle is mapped, and threads unmap it).
 */

#ifndef THREADS
#define THREADS 2
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef TURNS
#define TURNS 2
#endif
#ifndef GIVES_UP
#define GIVES_UP 1
#endif
#ifdef SHARED
#define LINES 1
#define LINE 0
#else
#define LINES THREADS
#define LINE i
#endif

chan stores[THREADS] = [2] of { byte };  /* to the thread's line */
byte inside[LINES];
bool closed;
byte waiting, captures, work;  /* work: what the GPU has not done yet */
bool locked;                   /* the mutex of the opening */
bool sleeping[THREADS];
bool away;                     /* ghost: the memory is out, or moves */
byte open_captures;            /* ghost */
byte ended;
#ifdef PARKS
bool parked;                   /* with the mutex, as is `passes` */
byte passes;
bool known = true;             /* the handle's mapping, to gdev ... */
bool mapped = true;            /* ... and to the driver */
bool moving;                   /* ghost */
#define IS_PARKED parked
#else
#define IS_PARKED false
#endif

proctype buffer(byte i)
{
    byte value;

    do
    :: atomic { stores[i]?value -> inside[LINE] = value; value = 0 }
    :: ended == THREADS && empty(stores[i]) -> break
    od
}

/* fence_all_threads() */
inline flush(i)
{
    do
    :: stores[i]?value -> inside[LINE] = value; value = 0
    :: empty(stores[i]) -> break
    od
}

/* Adds to the line. The own line's value is what the thread has stored last. */
inline add(change)
{
#ifdef SHARED
    atomic { outer = inside[LINE]; inside[LINE] = inside[LINE] + change }
#else
    atomic { outer = own; own = own + change; stores[i]!own }
#endif
}

#ifdef SHARED
#define PASSES false
#elif defined(MUTANT_NESTED_WAITS)
#define PASSES false
#else
#define PASSES (outer != 0)
#endif

/* is_parking_enough: for a memory_pass, which parked memory gives as well (`took`). */
inline submit(is_parking_enough)
{
    do
    :: true ->
#ifdef MUTANT_LOOKS_BEFORE_IT_COUNTS
        was_closed = closed;
        add(1);
#else
        add(1);
#ifdef FENCES
        atomic { flush(i) }
#endif
        was_closed = closed;
#endif
        if
        :: atomic { !was_closed || PASSES -> outer = 0; was_closed = false } break
        :: atomic { else -> outer = 0; was_closed = false }
        fi;
#ifndef MUTANT_WAITS_INSIDE
        add(-1);
#endif
        /* wait_until_open() */
        waiting++;
        atomic { !locked -> locked = true }
        do
        :: closed && !(is_parking_enough && IS_PARKED) ->
            atomic { locked = false; sleeping[i] = true }
            atomic { !sleeping[i] && !locked -> locked = true }
        :: else -> break
        od;
#ifdef PARKS
        took = is_parking_enough && parked;
#ifndef MUTANT_PASS_COUNTED_LATE
        passes = passes + took;
#endif
#endif
        locked = false;
        waiting--;
#ifdef PARKS
#ifdef MUTANT_PASS_COUNTED_LATE
        passes = passes + took;
#endif
        if
        :: took -> break
        :: else
        fi;
#endif
#ifdef MUTANT_WAITS_INSIDE
        add(-1);
#endif
    od
}

inline launch()
{
    atomic { assert(!away); work++ }   /* property: work is submitted to memory that is there */
}

#ifdef PARKS
/* cuMemUnmap(): gdev forgets the mapping, and the driver removes what it has. */
inline unmap()
{
    submit(true);
    atomic { assert(took || !away); known = false }
    if
    :: atomic { took ->
            assert(!mapped && !moving) }   /* property: it finds nothing that a move has made */
        atomic { !locked -> passes--; took = false }
    :: else ->
        atomic { assert(!away); mapped = false }
        add(-1)
    fi
}
#endif

proctype thread(byte i)
{
    byte own, outer, value, ops = OPS;
    bool was_closed;
#ifdef PARKS
    bool took;
#endif

    do
#ifdef PARKS
    :: ops > 0 -> ops--; unmap()
#endif
    :: ops > 0 -> ops--;
        submit(false);
        if
        :: launch()
        :: assert(!away);              /* property: nor are allocations changed beside a move */
            submit(false);                  /* a call within a call */
            launch();
            add(-1)
        :: open_captures == 0 ->       /* a capture: the call that begins it ... */
            open_captures++;
#ifdef MUTANT_CAPTURE_COUNTED_LATE
            add(-1);
#endif
            captures++;
#ifndef MUTANT_CAPTURE_COUNTED_LATE
            add(-1);
#endif
            submit(false);                  /* ... work of it, ... */
            assert(!away);
            add(-1);
            open_captures--;           /* ... and the end, which passes no gate */
            captures--;
            goto next
        fi;
        add(-1);
next:
        skip
    :: else -> break
    od;
    ended++
}

proctype gpu()
{
    do
    :: atomic { work > 0 -> assert(!away); work-- }   /* property: no work runs meanwhile */
    :: ended == THREADS && work == 0 -> break
    od
}

#if GIVES_UP
#define OR_GIVES_UP :: goto open
#else
#define OR_GIVES_UP
#endif

inline wait_for_submissions()
{
    for (line : 0 .. LINES - 1) {
        if
        :: inside[line] == 0
        OR_GIVES_UP
        fi
    }
}

inline look_for_captures()
{
    if
    :: captures == 0
    :: captures > 0 -> goto open
    fi
}

#ifdef PARKS
inline park()
{
    atomic {
        !locked -> parked = true;
        for (i : 0 .. THREADS - 1) { sleeping[i] = false }
        i = 0
    }
}

inline unpark()
{
#ifndef MUTANT_STAYS_PARKED
    atomic { !locked -> parked = false }
#endif
#ifndef MUTANT_UNPARKS_BESIDE_PASSES
    atomic { !locked && passes == 0 }
#endif
}
#endif

proctype turn_service()
{
    byte line, i, value, turns = TURNS;
#ifdef PARKS
    bool was_known, has_failed;
#endif

again:
    if
    :: turns > 0 && ended < THREADS -> turns--
    :: else -> goto end
    fi;
    closed = true;
#ifndef FENCES
#ifndef MUTANT_NO_MEMBARRIER
    atomic { for (i : 0 .. THREADS - 1) { flush(i) } i = 0 }
#endif
#endif
#ifdef MUTANT_CAPTURES_FIRST
    look_for_captures();
    wait_for_submissions();
#else
#ifndef MUTANT_NO_WAIT
    wait_for_submissions();
#endif
#ifndef MUTANT_IGNORES_CAPTURES
    look_for_captures();
#endif
#endif
#ifndef MUTANT_NO_DRAIN
    if
    :: work == 0
    OR_GIVES_UP
    fi;
#endif
    if
    :: goto open                /* is_idle() */
    :: true
    fi;
    atomic { away = true; assert(open_captures == 0) }   /* property: no capture is cut in two */
#ifdef MUTANT_OPENS_FIRST
    closed = false;
#endif
#ifdef PARKS
move_out:
    moving = true;
#ifdef MUTANT_PARKS_FIRST
    park();
#endif
    mapped = false;
    moving = false;
#ifndef MUTANT_PARKS_FIRST
    park();
#endif
#endif
    /* off the GPU, until a thread waits; the daemon's part is in turns.pml */
    if
    :: waiting > 0
    :: ended == THREADS
    fi;
#ifdef PARKS
    unpark();
    moving = true;
    was_known = known;
    mapped = was_known;
    was_known = false;
    if
    :: !has_failed -> has_failed = true; goto move_out   /* the order has changed */
    :: true
    fi;
    moving = false;
#endif
    away = false;
open:
#ifdef MUTANT_OPENS_WITHOUT_LOCK
    closed = false;
#else
    atomic { !locked -> locked = true }
    closed = false;
    locked = false;
#endif
    atomic { for (i : 0 .. THREADS - 1) { sleeping[i] = false } i = 0; line = 0 }
    goto again;
end:
    skip
}

init
{
    byte i;
    atomic {
        for (i : 0 .. THREADS - 1) { run thread(i); run buffer(i) }
        run gpu();
        run turn_service()
    }
    _nr_pr == 1;
    assert(waiting == 0 && captures == 0 && work == 0);
#ifdef PARKS
    assert(passes == 0 && mapped == known);
#endif
    for (i : 0 .. LINES - 1) { assert(inside[i] == 0) }
}
