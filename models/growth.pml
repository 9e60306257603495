/*
 * growth.pml - two writes that make a file longer, beside a write-back and truncations. In the
 * end the page and the host's file agree.
 *
 * Real code: include/gpufs/file/write_bytes.cuh ("Concurrent writes and truncations",
 * write_resident, finish_pinned, write_any), file/truncate.cuh (truncate_file), cache/dirty.cuh
 * (set, set_again, note_cut, is_uncut, is_untaken), cache/run_writer.cuh (write).
 *
 * One page, which lies wholly past the end of the file at first. Two groups write a part of it
 * each. `slow` writes through write_any(). `fast` writes through write_resident(): it finds the
 * page dirty by the other write, and may see that the other write has raised the size.
 * Truncations empty the file. The page is in the range of a truncation only if the size covered
 * it. One step is one access to shared memory, as in dirty.pml, which has the rest: errors,
 * evictions, several users, closes. Here the page is never evicted.
 *
 * Configuration: CUTS and CLEANINGS (how many of each).
 */

#ifndef CUTS
#define CUTS 1
#endif
#ifndef CLEANINGS
#define CLEANINGS 1
#endif

#define FAST 0
#define SLOW 1

bool resident;
bool page[2], mask[2];  /* whether the part has its bytes, and its bits */
bool dirty;             /* the page's flags ... */
bool cleaning;
byte cleanings, notes;  /* ... and counts, of one word with them */
bool covers;            /* the size covers the page */
byte cuts;              /* odd while a truncation is under way */
bool host[2];
byte ended;

#define UNDER_WAY (cuts & 1)

/* write_any(), from its look at `cuts` on. */
inline write_again(i)
{
    do
    :: atomic { !UNDER_WAY -> before = cuts }
        atomic { resident = true; page[i] = true }
        mask[i] = true;
        dirty = true;
        covers = true;
        if
        :: cuts == before -> break
        :: else
        fi
    od
}

proctype slow()
{
    byte before;
    write_again(SLOW);
    ended++
}

#ifdef MUTANT_TRUSTS_A_CLEANER
#define IS_UNTAKEN (cleanings == cleanings_seen)
#else
#define IS_UNTAKEN (cleanings == cleanings_seen && !was_cleaned)
#endif

proctype fast()
{
    byte before, cleanings_seen, notes_seen;
    bool was_dirty, was_cleaned, covered, marked;

    /* write_resident() */
    atomic { resident -> was_dirty = dirty; was_cleaned = cleaning; cleanings_seen = cleanings; notes_seen = notes }
    page[FAST] = true;
    mask[FAST] = true;
#ifndef MUTANT_SIZE_AFTER_MARKS
    covered = covers;
#endif
    /* set_again() */
    marked = was_dirty && dirty && cleaning == was_cleaned && cleanings == cleanings_seen && notes == notes_seen;
#ifdef MUTANT_SIZE_AFTER_MARKS
    covered = covers;
#endif
    if
    :: marked && covered -> goto done
    :: else
    fi;
    /* finish_pinned() */
    do
    :: true ->
        if
        :: !marked ->
            mask[FAST] = true;
            dirty = true
        :: else
        fi;
        covers = true;
        if
        :: UNDER_WAY -> break
        :: else
        fi;
        atomic {
            if
#ifndef MUTANT_LOOKS_FOR_NO_CUT
            :: notes != notes_seen -> break
#endif
#ifndef MUTANT_MARKS_ONCE
            :: notes == notes_seen && !covered && !IS_UNTAKEN -> marked = false; covered = true
#endif
            :: else -> goto done
            fi
        }
    od;
    write_again(FAST);
done:
    ended++
}

inline take()  { dirty = false; cleaning = true; cleanings++ }

proctype cleaner()
{
    bool taken[2];
    byte left = CLEANINGS;

    do
    :: atomic { left > 0 && dirty && !cleaning -> left--; take() }
        if
        :: UNDER_WAY -> atomic { dirty = true; cleaning = false }
        :: else ->
            atomic { taken[0] = mask[0]; taken[1] = mask[1]; mask[0] = false; mask[1] = false }
            atomic { taken[0] = taken[0] && page[0]; taken[1] = taken[1] && page[1] }
            atomic { host[0] = host[0] || taken[0]; host[1] = host[1] || taken[1]; taken[0] = false; taken[1] = false }
            cleaning = false
        fi
    :: left > 0 && ended == 2 + CUTS -> break
    :: left == 0 -> break
    od;
    ended++
}

/* truncate_file(), one at a time. */
proctype truncation()
{
    bool in_range;

    atomic { !UNDER_WAY -> cuts++ }
    in_range = covers;
    if
    :: in_range -> !cleaning   /* wait_for_write_backs() */
    :: else
    fi;
    atomic { host[0] = false; host[1] = false }
    atomic { in_range = in_range || covers; covers = false }
    if
    :: in_range && resident ->
        if
        :: atomic { !cleaning && dirty -> take() }
            atomic { mask[0] = false; mask[1] = false }
            cleaning = false
        :: atomic { !cleaning && !dirty }
        fi;
        atomic { page[0] = false; page[1] = false }
        notes++
    :: else
    fi;
    cuts++;
    ended++
}

init
{
    byte i;
    atomic {
        run slow();
        run fast();
        run cleaner();
        for (i : 1 .. CUTS) { run truncation() }
    }
    ended == 3 + CUTS;
    atomic {
        /* The last write-back. */
        if
        :: dirty -> host[0] = (mask[0] -> page[0] : host[0]); host[1] = (mask[1] -> page[1] : host[1])
        :: else
        fi;
        /* property: the file has what readers of the page were given */
        assert(!covers || (page[0] == host[0] && page[1] == host[1]))
    }
}
