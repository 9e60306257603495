/*
 * late.pml - writes and truncations that hang in the backend. They outlive the wait of their
 * callers, and the close of their file.
 *
 * Real code: include/gpufs/cache/inode_state.cuh (is_settled; lost), file/truncate.cuh
 * (truncate_file), channel/client.cuh (withdraw, has_unanswered_write), src/service/answer.cpp
 * (begin), request_server.cpp (serve_write, serve_truncate), file_versions.cpp (version_of),
 * file_table.cpp (close) and file_table.hpp (change_under_way).
 *
 * One file, and users that open it, change it and close it, several times. A change is a write of
 * one page (user 0) or a truncation (the other users). The device makes one change at a time
 * (`changing`: the page's cleaning flag, inode_state::cuts). Each change gets the next higher
 * number when it is posted. So a change that takes place after a newer one shows, and means lost
 * data. A caller waits for the answer, or gives up at any moment. The backend may take any time.
 *
 * A version is open as long as it has writers. What the device knows of changes that were given up
 * (`lost`, `settled`) belongs to the version. What the host knows (`under_way`) belongs to the
 * file.
 *
 * Granularity: one step of an actor is one access to shared memory, or one section under a mutex of
 * the host, together with thread-private work and ghosts. begin() and withdraw() are one step each:
 * withdraw.pml has their steps.
 *
 * Left out: weak memory, dirty pages (dirty.pml), several pages (a late write of one page meets
 * only writes of that page and truncations), paths (path_operations.hpp is one mutex).
 *
 * Configuration: USERS (2 or 3), SESSIONS (of each), CHANGES (in a session), SLOTS, WORKERS.
 */

#ifndef USERS
#define USERS 2
#endif
#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef CHANGES
#define CHANGES 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WORKERS
#define WORKERS 2
#endif

#define FREE      0
#define POSTED    1
#define TAKEN     2
#define ANSWERED  3
#define WITHDRAWN 4

/* The channel. */
byte state[SLOTS];
byte asked_version[SLOTS];
byte number[SLOTS];
bool abandoned[SLOTS];

/* The device. */
bool changing;
byte lost;                /* of the version: changes that were given up, and had begun */
byte settled;

/* The host. */
byte version;             /* the last version that was made */
byte writers;             /* of this version */
byte under_way;           /* calls of the backend that change the file */

/* Ghosts. */
byte last;                /* the number of the last change that was posted */
byte in_file;             /* the number of the last change that took place */
byte done;                /* users that have ended */

inline open_file()
{
  do
  :: atomic {
       /* Under the mutex of the version's shard. */
       writers > 0 -> writers++; break
     }
#ifdef MUTANT_OPEN_DOES_NOT_LOOK
  :: atomic { writers == 0 -> version++; writers = 1; lost = 0; settled = 0; break }
#else
  :: atomic { writers == 0 && under_way == 0 -> version++; writers = 1; lost = 0; settled = 0; break }
#endif
  od
}

/* is_settled(), once. A caller that waits for it may go on at any later moment, or give up. */
inline look_whether_settled()
{
  seen = lost;
  if
  :: seen == settled -> is_settled = true
  :: else ->
     is_settled = true;
     i = 0;
     do
     :: i < SLOTS ->
        if
        :: (state[i] == POSTED || state[i] == TAKEN) && asked_version[i] == version -> is_settled = false
        :: else
        fi;
        i++
     :: else -> break
     od;
     if
     :: is_settled -> settled = seen
     :: else
     fi
  fi;
  seen = 0;
  i = 0
}

inline change_file()
{
  atomic { !changing -> changing = true }
  is_settled = true;
#ifdef MUTANT_CUT_DOES_NOT_SETTLE
  if
  :: me == 0 -> look_whether_settled()
  :: else
  fi;
#else
  look_whether_settled();
#endif
  if
  :: !is_settled                    /* -EIO */
  :: is_settled ->
     /* A slot that is free, or was abandoned and has its late answer. */
     atomic {
       if
       :: state[0] == FREE || (state[0] == ANSWERED && abandoned[0]) -> slot = 0
       :: state[1] == FREE || (state[1] == ANSWERED && abandoned[1]) -> slot = 1
       fi;
       last++;
       number[slot] = last;
       asked_version[slot] = version;
       abandoned[slot] = false;
       state[slot] = POSTED
     }
     if
     :: atomic { state[slot] == ANSWERED -> state[slot] = FREE }
     :: atomic { state[slot] == POSTED -> state[slot] = FREE }   /* withdrawn before it was begun */
     :: atomic { state[slot] == TAKEN || state[slot] == ANSWERED -> abandoned[slot] = true }
#ifdef MUTANT_CUT_IS_NOT_LOST
        if
        :: me == 0 -> lost++
        :: else
        fi
#else
        lost++
#endif
     fi;
     slot = 0
  fi;
  is_settled = false;
  changing = false
}

proctype user(byte me)
{
  byte sessions = SESSIONS, changes, slot, seen, i;
  bool is_settled;
  do
  :: sessions > 0 ->
     open_file();
     changes = CHANGES;
     do
     :: changes > 0 -> change_file(); changes--
     :: break                       /* fewer changes */
     od;
     changes = 0;
     /* The last close waits for changes of the device that are under way. */
     atomic { !changing -> writers-- }
     sessions--
  :: else -> break
  od;
  done++
}

proctype worker()
{
  byte slot;
  bool is_open;
  do
  :: atomic {
       if
       :: state[0] == POSTED -> slot = 0
       :: state[1] == POSTED -> slot = 1
       fi;
       state[slot] = TAKEN
     }
     is_open = (writers > 0 && asked_version[slot] == version);      /* look_up() */
     if
     :: is_open ->
        under_way++;                                                 /* change_under_way */
#ifndef MUTANT_LOOKS_ONCE
        is_open = (writers > 0 && asked_version[slot] == version);
#endif
        if
        :: is_open ->
           atomic { assert(number[slot] > in_file); in_file = number[slot] }
        :: else
        fi;
        under_way--
     :: else
     fi;
     atomic { state[slot] = ANSWERED; slot = 0; is_open = false }
  :: atomic { done == USERS && state[0] != POSTED && state[1] != POSTED -> break }
  od
}

init
{
  byte n = 0;
  atomic {
    do
    :: n < USERS -> run user(n); n++
    :: else -> break
    od;
    n = 0;
    do
    :: n < WORKERS -> run worker(); n++
    :: else -> break
    od;
    n = 0
  }
}
