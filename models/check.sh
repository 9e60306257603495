#!/usr/bin/env bash
# Verifies the Promela models of this folder with spin, and requires that each mutant fails.
#
#   models/check.sh            all checks (less than four minutes on two idle cores)
#   models/check.sh --deep     also the same properties on larger configurations (twice as long)
#   models/check.sh PATTERN    only checks whose name contains PATTERN (no completeness test)
#
# Prints one line per check. Exit status 0: every verification was exhaustive and free of errors,
# every mutant that was checked was caught, every MUTANT_ of the models has a check, and some check reached every
# statement of each model of which all checks ran.
#
# Environment: CHECK_JOBS (checks at a time; default: the number of cores, at most 4),
# CHECK_TIMEOUT_S (seconds for one check; default: 1500), GPUFS_TEST_ROTATION (a number: only every
# third check, others with the next number, but all of a model that changed in the last day;
# `make test` sets it to the day).
set -u

models=$(cd "$(dirname "$0")" && pwd)
deep=""
if [ "${1:-}" = --deep ]; then deep=1; shift; fi
pattern=${1:-}
jobs_max=${CHECK_JOBS:-$(n=$(nproc); echo $((n > 4 ? 4 : n)))}
timeout_s=${CHECK_TIMEOUT_S:-1500}

for tool in spin gcc timeout; do
    command -v "$tool" >/dev/null || { echo "check.sh: $tool is missing" >&2; exit 2; }
done

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# check NAME FAMILY MODE EXPECTED MODEL DEFINES...
#   FAMILY   checks whose reached statements are counted together ("-": none)
#   MODE     safety: assertions and invalid end states; cycles: also non-progress cycles. The models
#            have no progress labels and bounded work. So a model without cycles and invalid end
#            states ends in every run.
#   EXPECTED holds, or caught (a mutant)
check() {
    local name=$1 family=$2 mode=$3 expected=$4 model=$5
    shift 5
    local dir=$work/$name output verdict="" states detail errors
    mkdir "$dir" && cd "$dir" || return 1
    local compile=(-w -DNOFAIR -DMEMLIM=2000) run=(-m100000)
    if [ "$mode" = cycles ]; then compile+=(-DNP); run+=(-l); else compile+=(-DSAFETY); fi
    # Most checks take longer to compile than to run: optimization and compressed states are only
    # for large ones. A mutant's search visits few states, so it needs no large table of them.
    case $expected.$name in
        caught.*) compile+=(-O0) run+=(-w20) ;;
        holds.deep.dirty.*) compile+=(-Og) ;;
        holds.deep.* | holds.channel.*) compile+=(-O2 -DCOLLAPSE) ;;
        *) compile+=(-Og) ;;
    esac

    if ! spin -a "$@" "$models/$model" >spin.txt 2>&1 || [ ! -f pan.c ]; then
        verdict="spin failed: $(tail -1 spin.txt)"
    elif ! gcc "${compile[@]}" -o pan pan.c 2>gcc.txt; then
        verdict="gcc failed: $(tail -1 gcc.txt)"
    else
        timeout "$timeout_s" ./pan "${run[@]}" >pan.txt 2>&1
        local status=$?
        output=$(cat pan.txt)
        states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.txt)
        errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.txt)
        detail=$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/\1/p' pan.txt | head -1)
        case $output in
            *"max search depth too small"* | *truncated* | *"out of memory"* | *"MEMLIM bound"* | *"VECTORSZ"*)
                verdict="search was truncated" ;;
        esac
        if [ $status -eq 124 ]; then verdict="took longer than $timeout_s s"
        elif [ -n "$verdict" ]; then :
        elif [ -z "$errors" ]; then verdict="no result (status $status)"
        elif [ "$expected" = holds ] && [ "$errors" != 0 ]; then verdict="ERROR: $detail"
        elif [ "$expected" = holds ] && [ $status -ne 0 ]; then verdict="pan ended with $status"
        elif [ "$expected" = holds ] && grep -q 'Search not completed' pan.txt; then verdict="search was not completed"
        elif [ "$expected" = caught ] && [ "$errors" = 0 ]; then verdict="mutant SURVIVES"
        elif [ "$expected" = caught ]; then
            case $detail in
                *"assertion violated"* | "invalid end state" | "non-progress cycle") ;;
                *) verdict="caught by no property: $detail" ;;
            esac
        fi
    fi

    if [ -n "$verdict" ]; then
        printf 'FAIL    %-44s %s\n' "$name" "$verdict"
        touch "$work/failed"
    elif [ "$expected" = holds ]; then
        printf 'holds   %-44s %-7s %10s states\n' "$name" "$mode" "$states"
        if [ "$family" != - ]; then
            # The statements that are compiled but not reached, as "line text".
            sed -n 's/^\t[^ ]*:\([0-9]*\), state [0-9]*, \(.*\)$/\1 \2/p' pan.txt | sort -u >"$work/unreached.$family.$name"
        fi
    else
        printf 'caught  %-44s %-7s %10s states  %s\n' "$name" "$mode" "$states" "$detail"
    fi
    echo "$*" >>"$work/defines"
    rm -rf "$dir"
}

start() {
    case $1 in *"$pattern"*) ;; *) return ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_max" ]; do wait -n; done
    check "$@" &
}

# What a check says stays true until its model changes. So whether one of a model that has not changed
# lately can be left to another day.
checks=0
is_for_another_day() { # MODEL
    checks=$((checks + 1))
    [ -z "$pattern" ] && [ -n "${GPUFS_TEST_ROTATION:-}" ] &&
        [ $(((checks + GPUFS_TEST_ROTATION) % 3)) != 0 ] && ! has_changed "$1"
}
# Also without git, or without its history.
declare -A changed
has_changed() { # MODEL
    if [ -z "${changed[$1]:-}" ]; then
        changed[$1]=yes
        if git -C "$models" diff --quiet HEAD -- "$1" check.sh 2>/dev/null &&
            [ "$(git -C "$models" rev-parse --is-shallow-repository)" = false ] &&
            [ -z "$(git -C "$models" log -1 --since='1 day ago' --format=%h -- "$1")" ]; then
            changed[$1]=no
        fi
    fi
    [ "${changed[$1]}" = yes ]
}

holds() {
    if is_for_another_day "$4"; then
        touch "$work/partial.$2"
        return
    fi
    start "$1" "$2" "$3" holds "${@:4}"
}
caught() {
    if is_for_another_day "$3"; then
        echo "-DMUTANT_${1#*.}" >>"$work/defines"  # it has a check
        return
    fi
    start "mutant.$1" - "$2" caught "$3" "-DMUTANT_${1#*.}" "${@:4}"
}

# --- What must hold. The longest checks come first, so that the cores end together. ---------------

overflow="-DKEYS=3 -DBUCKETS=2 -DCELLS=1"
three_slots="-DSLOTS=3 -DKEYS=3 -DBUCKETS=3 -DCELLS=1"
alone="-DEVICTIONS=0 -DOUTSIDE=0"   # no eviction, no other program writes the file
one_byte="-DBYTES=1 $alone"
mount_alone="-DOTHERS=0 -DKERNEL=0"   # no other program, and Linux writes only when asked

if [ -n "$deep" ]; then
    holds deep.frames.races                 frames safety slot_state.pml -DOPS0=2 -DOPS1=1 -DOPS2=1
    holds deep.gate.two_calls               gate safety gate.pml -DTURNS=1 -DOPS=2
    holds deep.turns.restart_and_death      turns safety turns.pml -DRESTARTS=1 -DDEATHS=1
    holds deep.turns.three_clients_grow     turns safety turns.pml -DCLIENTS=3
    holds deep.turns.three_clients_restart  turns safety turns.pml -DCLIENTS=3 -DGROWTHS=0 -DRESTARTS=1
    holds deep.growth.two_cuts              growth safety growth.pml -DCUTS=2
    holds deep.channel.deadline_and_post    channel safety channel.pml -DOPS=2 -DDEADLINES=1 -DPOSTS=1
    holds deep.dirty.three_users            dirty safety dirty.pml $one_byte -DUSERS=3 -DCLEANERS=0
    holds deep.dirty.two_cleaners           dirty safety dirty.pml $one_byte -DCLEANERS=2
    holds deep.dirty.everything             dirty safety dirty.pml
    holds deep.dirty.truncation             dirty safety dirty.pml -DTRUNCATE $alone -DFAULTS=0 -DWRITES0=2 -DWRITES1=0
    holds deep.dirty.truncation_ends        - cycles dirty.pml -DTRUNCATE $alone -DWRITES1=0
    holds deep.dirty.two_writes             dirty safety dirty.pml $one_byte -DWRITES0=2
    holds deep.frames.three_slots           frames safety slot_state.pml $three_slots -DPREFILL=2 -DOPS0=2 -DOPS1=2
    holds deep.open_files.two_keys          open_files safety slot_state.pml -DOPEN_FILES -DOPS2=1
    holds deep.frames.every_acquire_ends    - cycles slot_state.pml -DOPS2=1
    holds deep.sync.beside_another_program  - safety sync.pml -DKERNEL=0
    holds deep.sync.own_errors_two_turns    - safety sync.pml $mount_alone -DOWN_ERRORS=1 -DTURNS=2
    holds deep.sync.a_user_gives_up         - safety sync.pml $mount_alone -DGIVES_UP=1
    holds deep.sync.three_users             - safety sync.pml $mount_alone -DUSERS=3 -DDESCRIPTORS=1
fi
holds channel.all_faults_one_slot    channel safety channel.pml -DSLOTS=1 -DCLIENTS=3 -DDEADLINES=1 -DPOSTS=1 -DDEATHS=1
holds frames.overflow                frames safety slot_state.pml $overflow -DOPS2=1
holds append.two_cuts_and_a_failure   append safety append.pml -DCUTS=2 -DFAULTS=1
holds append.beside_another_writer    append safety append.pml -DCUTS=0 -DOTHERS=1 -DFAULTS=1
holds append.every_call_ends          - cycles append.pml -DCUTS=2
holds sync.two_users                  sync safety sync.pml -DOTHERS=0
holds sync.one_descriptor             sync safety sync.pml -DDESCRIPTORS=1 -DKERNEL=0
holds sync.own_errors                 sync safety sync.pml $mount_alone -DOWN_ERRORS=1
holds sync.two_turns                  sync safety sync.pml $mount_alone -DTURNS=2
holds sync.a_user_gives_up            sync safety sync.pml $mount_alone -DDESCRIPTORS=1 -DTURNS=2 -DGIVES_UP=1
holds sync.every_call_ends            - cycles sync.pml $mount_alone
holds growth.one_cut                  growth safety growth.pml
holds growth.two_cleanings            growth safety growth.pml -DCLEANINGS=2
holds turns.restart_and_death         turns safety turns.pml -DGROWTHS=0 -DRESTARTS=1 -DDEATHS=1
holds turns.two_clients               turns safety turns.pml -DGROWTHS=2 -DSTAYS=1
holds turns.one_cannot_release_more   turns safety turns.pml -DCLINGS=1
holds turns.a_death                   turns safety turns.pml -DDEATHS=1
holds turns.a_restart                 turns safety turns.pml -DGROWTHS=2 -DRESTARTS=1
holds turns.two_restarts              turns safety turns.pml -DGROWTHS=0 -DRESTARTS=2
holds turns.without_a_daemon          turns safety turns.pml -DRESTARTS=1 -DALONE
holds turns.three_clients             turns safety turns.pml -DCLIENTS=3 -DGROWTHS=0
holds turns.three_clients_two_fit     turns safety turns.pml -DCLIENTS=3 -DGROWTHS=0 -DUSED=1 -DCAPACITY=2
holds turns.each_gets_its_turn        - cycles turns.pml -DGROWTHS=2 -DSTAYS=1
holds turns.restart_and_turns_end     - cycles turns.pml -DRESTARTS=1
holds turns.clinging_and_turns_end    - cycles turns.pml -DCLINGS=1
holds turns.three_get_their_turns     - cycles turns.pml -DCLIENTS=3 -DGROWTHS=0
holds gate.membarrier                 gate safety gate.pml
holds gate.fences                     gate safety gate.pml -DFENCES
holds gate.endless_patience           gate safety gate.pml -DGIVES_UP=0
holds gate.shared_line                gate safety gate.pml -DSHARED -DOPS=2
holds gate.parked                     gate safety gate.pml -DPARKS -DTURNS=1
holds gate.every_call_ends            - cycles gate.pml -DTURNS=1
holds once.one_cleaner                once safety once.pml
holds once.two_cleaners               once safety once.pml -DCLEANERS=2
holds once.every_call_ends            - cycles once.pml
holds withdraw.a_request              withdraw safety withdraw.pml
holds withdraw.every_call_ends        - cycles withdraw.pml
holds late.two_sessions               late safety late.pml -DCHANGES=1
holds late.two_changes                late safety late.pml -DSESSIONS=1
holds late.every_call_ends            - cycles late.pml -DSESSIONS=1
holds channel.one_death              channel safety channel.pml -DCLIENTS=3 -DDEATHS=1
holds channel.every_call_ends        - cycles channel.pml -DSLOTS=1 -DCLIENTS=3 -DDEADLINES=1 -DPOSTS=1
holds channel.service_dies           channel safety channel.pml -DSLOTS=1 -DCLIENTS=3 -DPOSTS=1 -DDEATHS=2
holds open_files.every_open_ends     - cycles slot_state.pml -DOPEN_FILES -DOPS0=2 -DOPS1=2
holds open_files.one_key             open_files safety slot_state.pml -DOPEN_FILES -DKEYS=1 -DOPS0=2 -DOPS2=1
holds channel.lone_worker_dies       channel safety channel.pml -DWORKERS=1 -DOPS=2 -DDEADLINES=1 -DPOSTS=1 -DDEATHS=1
holds dirty.eviction                 dirty safety dirty.pml -DFAULTS=0
holds dirty.every_call_ends          - cycles dirty.pml $one_byte
holds dirty.sync                     dirty safety dirty.pml $one_byte -DSYNCS=1
holds dirty.two_cleaners             dirty safety dirty.pml $one_byte -DCLEANERS=2 -DFAULTS=0
holds dirty.two_failures             dirty safety dirty.pml -DBYTES=1 -DFAULTS=2
holds dirty.three_users              dirty safety dirty.pml $one_byte -DUSERS=3 -DCLEANERS=0 -DWRITES2=0 -DFAULTS=2
holds dirty.two_writes               dirty safety dirty.pml $one_byte -DWRITES0=2 -DFAULTS=0
holds dirty.truncation_and_cleaner   dirty safety dirty.pml -DTRUNCATE $alone -DWRITES1=0
holds frames.two_keys                frames safety slot_state.pml -DOPS2=1
holds open_files.overflow            open_files safety slot_state.pml -DOPEN_FILES $overflow -DOPS0=2 -DOPS1=2
holds dirty.truncation               dirty safety dirty.pml -DTRUNCATE $alone -DCLEANERS=0
holds dirty.truncation_of_what_is_dirty dirty safety dirty.pml -DTRUNCATE $alone -DCLEANERS=0 -DFAULTS=0 -DWRITES0=2 -DWRITES1=0
holds dirty.truncation_ends          - cycles dirty.pml -DTRUNCATE $alone -DCLEANERS=0
holds dirty.failure                  dirty safety dirty.pml -DCLEANERS=0
holds frames.one_key                 frames safety slot_state.pml -DKEYS=1 -DOPS0=2 -DOPS2=1
holds frames.loading_before_latch    - safety slot_state.pml -DLOADING_BEFORE_LATCH -DKEYS=1 -DOPS0=2 -DOPS2=1
holds frames.one_key_acquire_ends    - cycles slot_state.pml -DKEYS=1 -DOPS2=1
holds frames.overflow_acquire_ends   - cycles slot_state.pml $overflow -DPREFILL=2 -DOPS0=2
holds channel.lone_worker_calls_end  - cycles channel.pml -DWORKERS=1 -DOPS=2 -DDEATHS=1
holds open_files.reopen              open_files safety slot_state.pml -DOPEN_FILES -DOPS0=2 -DOPS1=2
holds frames.two_actors              frames safety slot_state.pml -DOPS0=2 -DOPS1=2
holds frames.three_slots             frames safety slot_state.pml $three_slots -DPREFILL=2 -DOPS0=2

# --- What must fail. ------------------------------------------------------------------------------

three="-DOPS0=2 -DOPS1=1 -DOPS2=1"
caught frames.GIVE_BACK_SILENT safety slot_state.pml -DLOADING_BEFORE_LATCH $three
for mutant in PIN_WITHOUT_STATE PIN_WITHOUT_KEY EVICT_PINNED REUSE_PINNED_FREE CLAIM_WITHOUT_CAS NO_RESCAN \
    INSERT_WITHOUT_LATCH LATCH_HELD_OVER_LOAD PUBLISH_BEFORE_BYTES PUBLISH_BY_STORE ERROR_AFTER_STATE \
    FAILED_LOAD_KEEPS_ENTRY FREE_BEFORE_REMOVE REMOVE_BY_TAG; do
    caught "frames.$mutant" safety slot_state.pml $three
done
caught frames.RESCAN_COUNTS_EVICTING cycles slot_state.pml -DOPS2=1
for mutant in PASSED_NOT_COUNTED PASSED_IS_FLAG; do
    caught "frames.$mutant" safety slot_state.pml $three_slots -DOPS0=2 -DOPS1=2
done
caught open_files.GIVE_BACK_SILENT safety slot_state.pml -DOPEN_FILES -DLOADING_BEFORE_LATCH -DKEYS=1 $three
for mutant in ROLLBACK_WITHOUT_CLOSE CLOSE_WITHOUT_CAS FREE_BEFORE_CLOSE; do
    caught "open_files.$mutant" safety slot_state.pml -DOPEN_FILES $three
done
one="-DSLOTS=1 -DCLIENTS=3"
caught channel.REUSE_BEFORE_REPLY safety channel.pml $one -DDEADLINES=1 -DPOSTS=1
caught channel.CHECK_ONLY_BEFORE_TAKE safety channel.pml $one -DDEADLINES=1 -DPOSTS=2
caught channel.FREE_AT_DEADLINE safety channel.pml $one -DDEADLINES=1
caught channel.FREE_AT_POST safety channel.pml $one -DPOSTS=1
for mutant in ONE_WORD_TELLS_FOR_ALL REPLY_BEFORE_STAGING FREE_BEFORE_READ SERVED_WITHOUT_CAS; do
    caught "channel.$mutant" safety channel.pml $one
done
for mutant in GUARD_SILENT GUARD_BLIND GUARD_ASKS_IF_MINE_IS_THERE; do
    caught "channel.$mutant" safety channel.pml $one -DDEATHS=1
done
caught channel.NOBODY_SAYS_DEAD safety channel.pml $one -DWORKERS=1 -DDEATHS=1
caught channel.CAS_RETRIED_WITH_OLD_VALUE cycles channel.pml $one
for mutant in READ_BEFORE_MASK FLAGS_BEFORE_BYTES FLAGS_BEFORE_BITS SET_AGAIN_WITHOUT_CAS NO_DIRTY_PIN PIN_KEPT \
    COUNT_AFTER_FLAG COUNT_AFTER_DIRTY END_CLEARS_ALL BITS_NOT_RESTORED BITS_OF_WHOLE_RESTORED FAILED_KEEPS_BOTH_PINS \
    FAILED_DROPS_PIN FLAGS_AFTER_MASK TWO_CLEANERS FLUSH_DOES_NOT_WAIT FLUSH_TRUSTS_OTHERS KEPT_AFTER_PAGE \
    KEPT_TAKEN_FIRST KEPT_IN_TWO_STEPS; do
    caught "dirty.$mutant" safety dirty.pml -DBYTES=1
done
for mutant in JOIN_DOES_NOT_WAIT WRITES_BEFORE_JOIN SEVERAL_JUST_DECREMENT LEAVE_IN_TWO_STEPS LEAVE_WITHOUT_GATE \
    GATE_WITHOUT_CAS GATE_OPENED_EARLY GATE_OPENED_BY_STORE LAST_DOES_NOT_LOOK LAST_TRUSTS_ITS_FLUSH DISCARD_AT_ONCE \
    DISCARDED_IN_SILENCE HOST_CLOSED_FIRST; do
    caught "dirty.$mutant" safety dirty.pml $one_byte -DCLEANERS=0
done
for mutant in SIZE_AFTER_MARKS LOOKS_FOR_NO_CUT MARKS_ONCE TRUSTS_A_CLEANER; do
    caught "growth.$mutant" safety growth.pml
done
for mutant in NO_MEMBARRIER LOOKS_BEFORE_IT_COUNTS CAPTURE_COUNTED_LATE CAPTURES_FIRST NO_WAIT \
    IGNORES_CAPTURES NO_DRAIN OPENS_FIRST OPENS_WITHOUT_LOCK; do
    caught "gate.$mutant" safety gate.pml
done
for mutant in NESTED_WAITS WAITS_INSIDE; do
    caught "gate.$mutant" safety gate.pml -DGIVES_UP=0
done
for mutant in PARKS_FIRST STAYS_PARKED UNPARKS_BESIDE_PASSES PASS_COUNTED_LATE; do
    caught "gate.$mutant" safety gate.pml -DPARKS -DTURNS=1
done
for mutant in GIVES_WHAT_IS_COMING RELEASED_TOO_EARLY DOES_NOT_DRAIN; do
    caught "turns.$mutant" safety turns.pml
done
for mutant in GIVES_BEFORE_ALL_ARE_BACK NO_REPORT ASKS_ONCE; do
    caught "turns.$mutant" safety turns.pml -DRESTARTS=1
done
caught turns.LEFT_IS_REFUSED safety turns.pml -DRESTARTS=1 -DDEATHS=1
caught turns.KEEPS_ALL safety turns.pml
caught turns.ENTERS_ABOVE_THE_CAPACITY safety turns.pml -DGROWTHS=2 -DRESTARTS=1
caught turns.TURN_OVER_AT_ONCE cycles turns.pml
for mutant in ASKS_BEFORE_IT_WRITES LOOKS_UP_BEFORE_IT_WRITES CLEAN_BEFORE_UPDATE TRUSTS_A_FETCH; do
    caught "once.$mutant" safety once.pml
done
for mutant in LOOKS_BEFORE_IT_CLAIMS LOOKS_BEFORE_IT_WITHDRAWS LOOKS_BEFORE_IT_ANSWERS LOOKS_FOR_AN_ANSWER_FIRST \
    TAKES_A_LATE_ANSWER; do
    caught "withdraw.$mutant" safety withdraw.pml
done
for mutant in OPEN_DOES_NOT_LOOK LOOKS_ONCE CUT_DOES_NOT_SETTLE CUT_IS_NOT_LOST; do
    caught "late.$mutant" safety late.pml
done
for mutant in APPENDS_WITHOUT_GATE MARKS_WITHOUT_GATE LOOKS_BEFORE_IT_COUNTS CUTS_BESIDE_USERS \
    OPENS_BEFORE_IT_CUTS_PAGES OPENS_BY_STORE; do
    caught "append.$mutant" safety append.pml
done
caught append.PLACE_GIVEN_BACK_BY_STORE safety append.pml -DFAULTS=1
for mutant in PLACE_GIVEN_BACK_TO_OTHERS NOTES_BESIDE_USERS; do
    caught "append.$mutant" safety append.pml -DCUTS=0 -DOTHERS=1 -DFAULTS=1
done
for mutant in JOINS_WHAT_RUNS TWO_AT_A_TIME FORGETS WITHOUT_REPORT; do
    caught "sync.$mutant" safety sync.pml -DOTHERS=0
done
for mutant in SYNCS_ONE CLOSES_UNASKED WRITES_UNMARKED REPORTS_BESIDE_ROUNDS; do
    caught "sync.$mutant" safety sync.pml -DOTHERS=0 -DOWN_ERRORS=1
done
caught sync.ERROR_FOR_EVER safety sync.pml $mount_alone -DTURNS=2
caught sync.OPENS_BESIDE_CALLS safety sync.pml $mount_alone -DTURNS=2 -DGIVES_UP=1
for mutant in CUT_DOES_NOT_WAIT CUT_LEAVES_WHOLE CLEANS_BESIDE_CUT WRITE_DOES_NOT_LOOK; do
    caught "dirty.$mutant" safety dirty.pml -DTRUNCATE $alone -DFAULTS=0 -DWRITES1=0
done
for mutant in GROWS_WITHOUT_LOOK LOOKS_AT_FLAGS_ALONE CUT_IS_FINE CUT_LEAVES_NO_NOTE; do
    caught "dirty.$mutant" safety dirty.pml -DTRUNCATE $alone -DFAULTS=0 -DWRITES0=2 -DWRITES1=0
done
caught dirty.DIRTY_AGAIN_IS_CLEAN safety dirty.pml -DTRUNCATE $alone -DWRITES1=0

wait

# --- Is the list complete, and does each statement of the models matter? --------------------------

if [ -z "$pattern" ]; then
    for mutant in $(grep -oh 'MUTANT_[A-Z_]*' "$models"/*.pml | sort -u); do
        grep -qw -e "-D$mutant" "$work/defines" || { echo "FAIL    $mutant has no check"; touch "$work/failed"; }
    done
    for family in frames open_files channel withdraw late append sync growth once dirty gate turns; do
        [ ! -e "$work/partial.$family" ] || continue
        lists=("$work/unreached.$family".*)
        [ -e "${lists[0]}" ] || { echo "FAIL    $family: no check held"; touch "$work/failed"; continue; }
        # The statements that no check of the family reaches.
        sort "${lists[@]}" | uniq -c | awk -v n="${#lists[@]}" '$1 == n' >"$work/never"
        if [ -s "$work/never" ]; then
            echo "FAIL    $family: statements that no check reaches:"
            cat "$work/never"
            touch "$work/failed"
        else
            printf 'reached %-44s every statement\n' "$family"
        fi
    done
elif [ ! -e "$work/defines" ]; then
    echo "check.sh: no check is named like '$pattern'" >&2
    exit 2
fi

[ ! -e "$work/failed" ] || { echo "models: FAILED"; exit 1; }
echo "models: all checks passed"
