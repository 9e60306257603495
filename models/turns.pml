/*
 * turns.pml - clients whose memory does not fit together take turns on a GPU, as a daemon orders.
 * A client that leaves keeps what others do not need, and releases more when they do. Clients grow,
 * die, and cannot leave or release more at times; the daemon dies and is started anew.
 *
 * Real code: gdev/daemon/turns.cpp (schedule, admit), leaving.cpp, turn_events.cpp (want, happen),
 * gdev/interposer/turn_service.cpp (leave, step_off, enter), client.cpp (use_memory,
 * connect_to_daemon).
 *
 * Each client has a program, which works, grows and frees, and the thread of its turns. Any of
 * both comes back to a new daemon. A message is one step with its answer, because the daemon
 * serves one at a time; what a client does with the answer comes later. The words of a page change
 * at any time. A turn is over at any time (`over`), and at the latest when tick() schedules.
 * Programs that have ended their work keep their memory: the others get their turns by orders.
 *
 * Configuration: CLIENTS, CAPACITY, USED (units of each client at first), GROWTHS (of client 0),
 * WORKS (calls of each program), STAYS, CLINGS (how often one cannot release more), DEATHS and
 * RESTARTS (how many of each), ALONE (a client without a daemon goes on by itself).
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef CAPACITY
#define CAPACITY 3
#endif
#ifndef USED
#define USED 2
#endif
#ifndef GROWTHS
#define GROWTHS 1
#endif
#ifndef WORKS
#define WORKS 1
#endif
#ifndef STAYS
#define STAYS 0
#endif
#ifndef CLINGS
#define CLINGS 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#define NONE CLIENTS

#define IN 0
#define LEAVING 1
#define OUT 2
#define ENTERING 3

/* Of the page's order. */
#define ORDER_OUT 1
#define CONTENDED 2
#define REPORT 4

/* What clients say, the clock, and what goes wrong. */
mtype = { hello, waits, leaves, released, left, stays, clings, entered, want };
mtype = { tick, settle, crash, die, stop };
chan ask = [0] of { mtype, byte };

/* The daemon. */
bool up = true, settled = true;
bool due;                       /* something has changed that it looks for by itself (tick) */
bool here[CLIENTS];             /* has joined this daemon */
byte phase[CLIENTS], room[CLIENTS], reserved[CLIENTS], pending[CLIENTS], place[CLIENTS];
byte kept[CLIENTS];             /* what a client that leaves need not release */
bool has_work[CLIENTS], stuck[CLIENTS], clinging[CLIENTS];
bool is_new[CLIENTS];           /* the turn has just begun: what waited for it has not gone on */
byte partial = NONE;
bool has_entered[CLIENTS], has_got[CLIENTS];   /* its answers */

/* Pages. */
byte granted[CLIENTS], used[CLIENTS], order[CLIENTS], page_room[CLIENTS];

/* Clients. */
bool alive[CLIENTS], is_open[CLIENTS], inside[CLIENTS], waiting[CLIENTS], is_off[CLIENTS];
byte size[CLIENTS], resident[CLIENTS];
byte stays_left = STAYS, clings_left = CLINGS, ended;

#define LESS(a, b) ((a) > (b) -> (a) - (b) : 0)
#define LEAST(a, b) ((a) < (b) -> (a) : (b))
#define WIRED(i) LESS(used[i], size[i])
#define ROOM(i) (phase[i] == IN -> granted[i] + reserved[i] : room[i])
#define RELEASABLE(i) LESS(ROOM(i), WIRED(i))
#define COMING(i) (phase[i] == LEAVING -> LESS(RELEASABLE(i), kept[i]) : 0)
/* What could come beside that from a client that is off, or leaves. */
#define KEPT(i) (here[i] && i != first && !stuck[i] && (phase[i] == LEAVING || phase[i] == OUT) -> \
    RELEASABLE(i) - COMING(i) : 0)
#define TOO_MUCH(i) LESS(resident[i], LESS(page_room[i], WIRED(i)))
#define MAY_LEAVE(i) (here[i] && i != first && phase[i] == IN && RELEASABLE(i) > 0)
#ifdef MUTANT_TURN_OVER_AT_ONCE
#define IS_OVER(i) over
#else
#define IS_OVER(i) (over && !is_new[i])
#endif
#define IS_VICTIM(i) (MAY_LEAVE(i) && !stuck[i] && (IS_OVER(i) || place[i] != 0))
#ifdef MUTANT_ENTERS_ABOVE_THE_CAPACITY
#define IS_ABOVE false
#else
#define IS_ABOVE (rooms > CAPACITY)
#endif
#define IS_BACK(i) (here[i] || !alive[i])
#if CLIENTS == 2
#define PRESENT (resident[0] + resident[1])
#define ARE_BACK (IS_BACK(0) && IS_BACK(1))
#else
#define PRESENT (resident[0] + resident[1] + resident[2])
#define ARE_BACK (IS_BACK(0) && IS_BACK(1) && IS_BACK(2))
#endif

/* ---- The daemon ---- */

inline enqueue()
{
    if
    :: place[i] == 0 ->
        for (k : 0 .. CLIENTS - 1) {
            if
            :: place[k] > place[i] -> place[i] = place[k]
            :: else
            fi
        }
        place[i]++
    :: else
    fi
}

inline dequeue(one)
{
    for (k : 0 .. CLIENTS - 1) {
        if
        :: place[one] != 0 && place[k] > place[one] -> place[k]--
        :: else
        fi
    }
    place[one] = 0;
    if
    :: partial == one -> partial = NONE
    :: else
    fi
}

inline begin_leaving(one)
{
    granted[one] = used[one];
    room[one] = granted[one];
    reserved[one] = 0;
    phase[one] = LEAVING;
    kept[one] = granted[one];   /* all, until it is known what others need */
    tell_kept(one)
}

inline tell_kept(one)
{
    page_room[one] = WIRED(one) + kept[one];
    order[one] = ORDER_OUT | REPORT
}

/* Ends the entering of a client: one that is off cannot release what this one needs. */
inline send_back()
{
    phase[partial] = LEAVING;
    kept[partial] = granted[partial];
    tell_kept(partial);
    partial = NONE
}

inline sum_rooms()
{
    rooms = 0;
    coming = 0;
    for (k : 0 .. CLIENTS - 1) {
        if
        :: here[k] ->
            rooms = rooms + ROOM(k);
            coming = coming + COMING(k)
        :: else
        fi
    }
    unused = LESS(CAPACITY, rooms);
    coming = coming + unused
}

inline find_first()
{
#if CLINGS > 0
    for (k : 0 .. CLIENTS - 1) {
        if
        :: partial != NONE && !clinging[partial] && clinging[k] && place[k] != 0 -> send_back()
        :: else
        fi
    }
#endif
    first = partial;
    for (k : 0 .. CLIENTS - 1) {
        if
        :: partial == NONE && here[k] && place[k] != 0 && phase[k] != LEAVING ->
            if
            :: first == NONE -> first = k
            :: first != NONE && clinging[k] > clinging[first] -> first = k
            :: first != NONE && clinging[k] == clinging[first] && place[k] < place[first] -> first = k
            :: else
            fi
        :: else
        fi
    }
}

inline set_contended()
{
    for (k : 0 .. CLIENTS - 1) {
        if
        :: here[k] && phase[k] == IN -> order[k] = (first != NONE && MAY_LEAVE(k) -> CONTENDED : 0)
        :: else
        fi
    }
}

/* Makes `needed` come from those that are off, and makes others leave if that is not enough. */
inline make_room()
{
    total = coming;
    for (k : 0 .. CLIENTS - 1) { total = total + KEPT(k) }
    for (k : 0 .. CLIENTS - 1) {
        if
        :: total < needed && IS_VICTIM(k) -> total = total + RELEASABLE(k)
        :: else
        fi
    }
    due = due || (total < needed && !over);
    if
    :: total >= needed && coming < needed ->
        total = coming;
        for (k : 0 .. CLIENTS - 1) { total = total + KEPT(k) }
        for (k : 0 .. CLIENTS - 1) {
            if
            :: total < needed && IS_VICTIM(k) ->
                total = total + RELEASABLE(k);
                begin_leaving(k)
            :: else
            fi
        }
        for (k : 0 .. CLIENTS - 1) {
            if
            :: coming < needed && KEPT(k) > 0 ->
                total = LEAST(needed - coming, KEPT(k));
                coming = coming + total;
                kept[k] = KEPT(k) - total;
                phase[k] = LEAVING;
#ifdef MUTANT_KEEPS_ALL
                order[k] = ORDER_OUT
#else
                tell_kept(k)
#endif
            :: else
            fi
        }
    :: else
    fi
}

inline schedule()
{
    do
#ifndef MUTANT_GIVES_BEFORE_ALL_ARE_BACK
    :: !settled -> break
    :: settled ->
#else
    :: true ->
#endif
        find_first();
        if
        :: first == NONE -> set_contended(); break
        :: else
        fi;
        if
        :: phase[first] == IN -> needed = LESS(used[first] + pending[first], ROOM(first))
        :: else ->
            granted[first] = used[first];
            if
            :: phase[first] == OUT -> room[first] = LEAST(room[first], WIRED(first) + resident[first])
            :: else
            fi;
            needed = LESS(used[first] + pending[first], room[first])
        fi;
        for (k : 0 .. CLIENTS - 1) {    /* reclaim() */
            if
            :: here[k] && phase[k] == IN && k != first -> granted[k] = used[k]
            :: else
            fi
        }
        sum_rooms();
        needed = needed + LESS(rooms, CAPACITY);    /* that must come, too */
        make_room();
        needed = needed - LESS(rooms, CAPACITY);
        coming = LESS(coming, LESS(rooms, CAPACITY));
        if
        :: coming < needed || IS_ABOVE || (phase[first] == IN && unused < needed) -> set_contended(); break
        :: else
        fi;
        if
        :: phase[first] == IN -> reserved[first] = reserved[first] + needed
        :: else ->
            phase[first] = ENTERING;
            partial = first;
#ifndef MUTANT_GIVES_WHAT_IS_COMING
            room[first] = room[first] + LEAST(unused, needed);
#else
            room[first] = room[first] + needed;
            unused = needed;
#endif
            page_room[first] = room[first];
            order[first] = 0;
            if
            :: unused < needed -> break
            :: else
            fi
        fi;
        dequeue(first)
    od
}

inline join()
{
    if
    :: !here[i] ->
        here[i] = true;
        page_room[i] = 0;
        order[i] = 0;
        granted[i] = used[i];
        if
        :: is_off[i] -> begin_leaving(i)
        :: else
        fi
    :: else
    fi
}

inline note_entered()
{
    if
    :: phase[i] == IN -> has_entered[i] = true
    :: phase[i] == ENTERING && place[i] == 0 ->
        has_entered[i] = true;
        granted[i] = used[i];
        phase[i] = IN;
        stuck[i] = clinging[i];
        due = due || clinging[i];
        clinging[i] = false;
        reserved[i] = pending[i];
        pending[i] = 0;
        has_work[i] = false;
        is_new[i] = waiting[i]
    :: else    /* not now */
    fi
}

inline note_left()
{
#ifndef MUTANT_LEFT_IS_REFUSED
    if
    :: phase[i] == IN -> begin_leaving(i)
    :: else
    fi;
#endif
    if
    :: phase[i] == LEAVING ->
        room[i] = LEAST(room[i], WIRED(i) + resident[i]);
        clinging[i] = false;
        if
        :: COMING(i) > 0 -> tell_kept(i)    /* more is needed meanwhile */
        :: else -> go_out()
        fi
    :: else
    fi
}

inline go_out()
{
    phase[i] = OUT;
    order[i] = ORDER_OUT;
    if
    :: has_work[i] || pending[i] != 0 -> enqueue()
    :: else
    fi
}

inline give_or_queue()
{
    sum_rooms();
    if
    :: phase[i] == IN && settled && unused + reserved[i] > 0 ->
        granted[i] = LESS(used[i] + 1, granted[i]) + granted[i];
        used[i]++;
        pending[i] = 0;
        reserved[i] = 0;
        dequeue(i);
        has_got[i] = true
    :: phase[i] == IN && settled && unused + reserved[i] == 0 -> pending[i] = 1; enqueue()
    :: else
    fi
}

inline forget(one)
{
    here[one] = false; phase[one] = IN; room[one] = 0; reserved[one] = 0; pending[one] = 0;
    place[one] = 0; has_work[one] = false; kept[one] = 0; clinging[one] = false;
    stuck[one] = false; page_room[one] = 0; is_new[one] = false
}

proctype daemon()
{
    byte i, k, first, rooms, unused, coming, needed, total;
    mtype what;
    bool over;

end_daemon:
    do
    :: atomic { ask?what,i ->
            if
            :: what == stop -> break
            :: what == tick ->
                due = false;
                for (k : 0 .. CLIENTS - 1) { stuck[k] = false }
            :: what == settle -> settled = true
            :: what == crash ->
                up = false; settled = false; due = false; partial = NONE;
                for (k : 0 .. CLIENTS - 1) { forget(k) }
            :: what == die ->
                alive[i] = false;
                resident[i] = 0; size[i] = 0; used[i] = 0; granted[i] = 0;
                inside[i] = false; waiting[i] = false;
                dequeue(i);
                forget(i)
            :: else ->
                join();
                if
                :: what == waits ->
                    has_work[i] = true;
                    if
                    :: phase[i] == OUT -> enqueue()
                    :: else
                    fi
                :: what == leaves && phase[i] == IN && order[i] != 0 -> begin_leaving(i)
                :: what == released && phase[i] == LEAVING ->
#ifdef MUTANT_RELEASED_TOO_EARLY
                    room[i] = WIRED(i)
#else
                    room[i] = LEAST(room[i], WIRED(i) + resident[i])
#endif
                :: what == left -> note_left()
                :: what == stays && phase[i] == LEAVING && room[i] == granted[i] ->
                    phase[i] = IN; stuck[i] = true; due = true; order[i] = 0
#if CLINGS > 0
                :: what == clings && phase[i] == LEAVING ->
                    room[i] = LEAST(room[i], WIRED(i) + resident[i]);
                    clinging[i] = true; stuck[i] = true; due = true;
                    has_work[i] = true;
                    go_out()
#endif
                :: what == entered -> note_entered()
                :: what == want -> is_new[i] = false; give_or_queue()
                :: else    /* hello, or not now */
                fi
            fi;
            if
            :: over = true
            :: what != tick && what != settle -> over = false   /* no turn is over yet */
            fi;
            schedule();
#if RESTARTS == 0
            sum_rooms();
            assert(rooms <= CAPACITY);   /* property; a new daemon adds up what there is */
#endif
                i = 0; k = 0; first = 0; rooms = 0; unused = 0; coming = 0; needed = 0; total = 0;
            what = 0; over = false
        }
    od
}

/* Its clock. When clients have had the time to come back, all have. */
proctype clock()
{
end_clock:
    do
    :: atomic { up && settled && due -> ask!tick,0 }
    :: atomic { up && !settled && ARE_BACK -> ask!settle,0 }
    :: atomic { timeout -> ask!stop,0 }   /* nothing happens any more */
        break
    od
}

proctype faults()
{
    byte crashes = RESTARTS, deaths = DEATHS;

    do
    :: atomic { crashes > 0 -> crashes--; ask!crash,0 }
        up = true
    :: atomic { deaths > 0 -> deaths--; ask!die,0 }
    :: atomic { deaths > 0 -> deaths--; ask!die,1 }
    :: true -> break
    od
}

/* ---- The thread of a client's turns ---- */

#define HAS_DAEMON (here[i] && up)
#define GOES_ON (!HAS_DAEMON || (order[i] & ORDER_OUT) == 0)
#ifdef ALONE
#define HAS_SPACE (PRESENT < CAPACITY)   /* of what a client without a daemon has taken */
#else
#define HAS_SPACE true
#endif
#define COMES_BACK :: atomic { alive[i] && up && !here[i] -> ask!hello,i }
#define DIES :: !alive[i] -> goto dead

/* Says it if there is a daemon. */
inline tell(what)
{
    if
    :: atomic { alive[i] && up -> ask!what,i }
    :: !up
    DIES
    fi
}

/* Releases what the daemon does not let it keep. */
inline release()
{
    do
    :: atomic { TOO_MUCH(i) > 0 ->
#ifdef MUTANT_RELEASED_TOO_EARLY
            skip
        }
        tell(released);
        atomic {
#endif
            resident[i] = LESS(resident[i], 1)
        }
        tell(released)
    :: else -> break
    od
}

proctype turn(byte i)
{
    bool asked;
    byte before;    /* what it has on the GPU when it begins to enter */

    if
    :: is_off[i] -> goto off
    :: else
    fi;
on:
end_on:
    do
    COMES_BACK
    :: HAS_DAEMON && (order[i] & ORDER_OUT) != 0 -> break
    /* Idle, while others wait: so no thread has just been let in. */
    :: atomic { alive[i] && HAS_DAEMON && order[i] == CONTENDED && !inside[i] && !waiting[i] ->
            ask!leaves,i }
        break
    DIES
    od;
    /* leave() */
    is_off[i] = true;
    is_open[i] = false;
    if
#ifdef MUTANT_DOES_NOT_DRAIN
    :: true
#else
    :: !inside[i]
#endif
    :: atomic { stays_left > 0 -> stays_left-- }
        is_off[i] = false;
        is_open[i] = true;
        tell(stays);
        goto on
    fi;
    release();
    tell(left);
off:
end_off:
    do
    COMES_BACK
#ifndef MUTANT_NO_REPORT
    :: HAS_DAEMON && (order[i] & REPORT) != 0 ->
        asked = false;
        if
        :: atomic { clings_left > 0 && TOO_MUCH(i) > 0 -> clings_left-- }
            tell(clings)
        :: true ->
            release();
            tell(left)
        fi
#endif
    :: HAS_DAEMON && waiting[i] && !asked -> asked = true; tell(waits)
    :: HAS_DAEMON && (order[i] & ORDER_OUT) == 0 -> break
#ifdef ALONE
    :: !up && waiting[i] -> break
    :: atomic { !up && !waiting[i] && resident[i] > 0 -> resident[i] = 0 }
#endif
    DIES
    od;
    /* enter() */
    before = resident[i];
    do
    :: atomic { alive[i] && HAS_DAEMON && GOES_ON && resident[i] < size[i] &&
            page_room[i] > WIRED(i) + resident[i] && HAS_SPACE ->
            assert(PRESENT < CAPACITY);   /* property: what a daemon gives is there */
            resident[i]++
        }
#ifdef ALONE
    :: atomic { alive[i] && !HAS_DAEMON && resident[i] < size[i] && PRESENT < CAPACITY ->
            resident[i]++ }
    :: resident[i] == size[i] && !up -> break
#endif
    COMES_BACK
    :: !GOES_ON -> break
    :: atomic { alive[i] && up && GOES_ON && resident[i] == size[i] &&
            (!here[i] || phase[i] == IN || (phase[i] == ENTERING && place[i] == 0)) ->
            ask!entered,i }
        if
        :: has_entered[i] -> break
        :: else
        fi
    DIES
    od;
#ifndef MUTANT_ASKS_ONCE
    asked = false;
#endif
    if
    :: !has_entered[i] && !(!up && resident[i] == size[i]) ->
        atomic { resident[i] = LEAST(resident[i], before); before = 0 }
        tell(left);
        goto off
    :: else
    fi;
    asked = false;
    before = 0;
    has_entered[i] = false;
    is_off[i] = false;
    is_open[i] = true;
    goto on;
dead:
    skip
}

/* ---- The program ---- */

/* A call has ended: the turn may be over now. */
#define END_CALL atomic { inside[i] = false; due = due || is_new[i]; is_new[i] = false }

inline pass_gate()
{
    if
    :: atomic { alive[i] && is_open[i] -> inside[i] = true }
    :: atomic { alive[i] && !is_open[i] -> waiting[i] = true }
        if
        :: atomic { alive[i] && is_open[i] -> waiting[i] = false; inside[i] = true }
        DIES
        fi
    DIES
    fi
}

proctype program(byte i)
{
    byte works = WORKS, growths = (i == 0 -> GROWTHS : 0);

    do
    :: works > 0 -> works--;
        pass_gate();
        assert(resident[i] == size[i]);   /* property: no work runs while memory is out */
        END_CALL
    :: growths > 0 && used[i] < CAPACITY -> growths--;   /* else it is out of memory */
        /* use_memory(), of one unit */
        do
        :: atomic { HAS_DAEMON && used[i] < granted[i] ->
                used[i]++; due = true; is_new[i] = false; has_got[i] = true
            }
            break
        :: atomic { alive[i] && !up ->
                has_got[i] = used[i] < granted[i];
                used[i] = used[i] + has_got[i]
            }
            break
        :: atomic { alive[i] && up && (!here[i] || used[i] >= granted[i]) -> ask!want,i }
            if
            :: has_got[i] -> break
            :: else
            fi;
            /* It asks again when that is of use, or when its turn has ended. */
            if
            :: !up || !here[i] || !is_open[i] || (settled && phase[i] == IN &&
                (used[i] < granted[i] || reserved[i] > 0 || pending[i] == 0))
            DIES
            fi;
            pass_gate();
            inside[i] = false
        DIES
        od;
        if
        :: has_got[i] ->
            has_got[i] = false;
            pass_gate();
            atomic {
                if
                :: alive[i] && !HAS_SPACE -> used[i] = LESS(used[i], 1)   /* out of memory */
                :: alive[i] && HAS_SPACE ->
                    assert(resident[i] == size[i]);
                    assert(PRESENT < CAPACITY);   /* property: what a client was granted is there */
                    size[i]++; resident[i]++; due = true
                :: else
                fi
            }
            END_CALL
        :: else
        fi
    /* It frees, and says so to no daemon. */
    :: growths > 0 -> growths--;
        pass_gate();
        atomic { size[i] = LESS(size[i], 1); resident[i] = LESS(resident[i], 1) }
        END_CALL;
        atomic { used[i] = LESS(used[i], 1); due = true }
    :: works == 0 && growths == 0 -> break
    od;
dead:
    ended++
}

init
{
    byte i;
    atomic {
        for (i : 0 .. CLIENTS - 1) {
            here[i] = true;
            alive[i] = true;
            used[i] = USED;
            size[i] = USED;
            granted[i] = USED;
            if
            :: i == 0 -> resident[i] = USED; is_open[i] = true
            :: else -> phase[i] = OUT; order[i] = ORDER_OUT; is_off[i] = true
            fi;
            run turn(i);
            run program(i)
        }
        run daemon();
        run clock();
        run faults()
    }
    ended == CLIENTS   /* property: each program has had its turns */
}
