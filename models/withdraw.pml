/*
 * withdraw.pml - requests whose callers give up. A request that changes files takes no effect after
 * its caller has learned that it never will. A file that an open leaves open is in use by the
 * caller, or the host closes it.
 *
 * Real code: include/gpufs/channel/client.cuh (wait, withdraw), src/service/answer.cpp (begin,
 * answer, close_withdrawn). channel.pml has the rest of a request's life.
 *
 * One request. A worker takes it at any time, or never. The caller waits for the answer, and gives
 * up at any time. One step is one access to shared memory. Each side stores to its own word and
 * then loads the other's. Both accesses are sequentially consistent in the code
 * (atomic_word::store_before_load), as all steps are here.
 *
 * `opens` and `changes` are request::opens() and request::changes_files(). An open that may create
 * or change the file is both. A second close of a file finds nothing, because a mount gives a
 * handle once.
 */

mtype = { none, done, refused };

bool opens, changes;
bool claimed;      /* reply_record::claimed has the request's number */
bool withdrawn;    /* the slot's word has it */
mtype answer = none;

/* Ghosts. */
bool took_effect;
bool is_open;      /* the host's file */
bool went_on;      /* the caller has gone on, knowing that the request never takes effect */
bool uses;         /* the caller has the file */

proctype worker()
{
    bool seen;

    if
    :: true -> goto end   /* it hangs before this, or has died */
    :: true
    fi;
    if
    :: changes ->
#ifdef MUTANT_LOOKS_BEFORE_IT_CLAIMS
        seen = withdrawn;
        claimed = true;
#else
        claimed = true;
        seen = withdrawn;
#endif
    :: else
    fi;
    if
    :: seen -> answer = refused; goto end
    :: else
    fi;
    /* property: no effect after the caller was told that there is none */
    atomic { assert(!went_on); took_effect = true; is_open = opens }
#ifdef MUTANT_LOOKS_BEFORE_IT_ANSWERS
    seen = withdrawn;
    answer = done;
#else
    answer = done;
    seen = withdrawn;
#endif
    if
    :: opens && seen -> is_open = false
    :: else
    fi;
end:
    skip
}

proctype caller()
{
    bool begun, late;

    if
    /* property: a request is not refused while its caller waits */
    :: atomic { answer != none -> assert(answer == done && took_effect); uses = opens }
    :: true ->
#ifdef MUTANT_LOOKS_BEFORE_IT_WITHDRAWS
        begun = claimed;
        withdrawn = true;
#else
#ifdef MUTANT_LOOKS_FOR_AN_ANSWER_FIRST
        late = (answer == done);
#endif
        withdrawn = true;
        begun = claimed;          /* it may still take effect, and the caller says so */
#endif
#ifndef MUTANT_LOOKS_FOR_AN_ANSWER_FIRST
        late = (answer == done);
#endif
        if
        :: changes && !begun -> atomic { assert(!took_effect); went_on = true }
        :: else
        fi;
        if
#ifdef MUTANT_TAKES_A_LATE_ANSWER
        :: opens && late -> uses = true
#else
        :: opens && late -> is_open = false
#endif
        :: else
        fi
    fi
}

init
{
    atomic {
        if
        :: opens = true
        :: changes = true
        :: opens = true; changes = true
        fi;
        run worker();
        run caller()
    }
    _nr_pr == 1;
    assert(is_open == uses)   /* property: the file is open if, and only if, the caller uses it */
}
