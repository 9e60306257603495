/*
 * withdraw.pml - requests that change files, whose callers give up: none takes effect after its caller was told that it never will.
 *
 * Real code: include/gpufs/channel/client.cuh (wait, withdraw), src/service/service.cpp (begin, answer). channel.pml has the rest of
 * a request's life.
 *
 * One request. A worker takes it at any time, or never. The caller waits for the answer, and gives up at any time. One step is one
 * access to shared memory. Each side stores to its own word and then loads the other's; both are sequentially consistent in the
 * code (atomic_word::store_before_load), as all steps are here.
 */

mtype = { none, done, refused };

bool claimed;      /* reply_record::claimed has the request's number */
bool withdrawn;    /* the slot's word has it */
mtype answer = none;

/* Ghosts. */
bool took_effect;
bool went_on;      /* the caller has gone on, knowing that the request never takes effect */

proctype worker()
{
    if
    :: true -> goto end   /* it hangs before, or has died */
    :: true
    fi;
#ifdef MUTANT_LOOKS_BEFORE_IT_CLAIMS
    bool seen = withdrawn;
    claimed = true;
    if
    :: seen ->
#else
    claimed = true;
    if
    :: withdrawn ->
#endif
        answer = refused
    :: else ->
        atomic { assert(!went_on); took_effect = true }   /* property */
        answer = done
    fi;
end:
    skip
}

proctype caller()
{
    if
    :: atomic { answer != none -> assert(answer == done && took_effect) }   /* property: who waits is never refused */
    :: true ->
#ifdef MUTANT_LOOKS_BEFORE_IT_WITHDRAWS
        bool begun = claimed;
        withdrawn = true;
        if
        :: begun
#else
        withdrawn = true;
        if
        :: claimed          /* it may still take effect, and the caller says so */
#endif
        :: else -> atomic { assert(!took_effect); went_on = true }
        fi
    fi
}

init
{
    atomic {
        run worker();
        run caller()
    }
}
