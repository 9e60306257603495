/** The job of this process, as the environment says it. */
#pragma once

#include "protocol/messages.hpp"

namespace gdev {

/** Returns the job. Says once what is wrong with GDEV_JOB_SIZE, which is ignored then. */
[[nodiscard]] job_word job_of_process() noexcept;

}  // namespace gdev
