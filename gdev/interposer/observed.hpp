/**
 * The counts of this process, for whoever observes it: gdev top, gdev metrics.
 *
 * Calls count in lines of their threads' own (gate.hpp), which costs a store each. The sums are
 * made only when the daemon asks for them, by the turn service, which a signal wakes; and when the
 * process ends. So a process that nobody observes pays nothing for it.
 */
#pragma once

namespace gdev {

/** Answers the daemon's question for counts, if there is one. May ask the daemon. */
void answer_question() noexcept;

}  // namespace gdev
