// What interposed.cpp asks of the scheduler, for a thread of a simulation.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>

namespace gpufs::testing::scheduling {

inline constexpr std::uint64_t never = ~std::uint64_t{0};

bool is_simulated();
std::uint64_t now_ns();
unsigned random_number();
void give_way();
void sleep_until(std::uint64_t ns);

int start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                 void* argument);
int join_thread(pthread_t thread, void** result);

// Waits until wake() for this object, or until then. False: the time is over. The caller has seen
// that it must wait, and no other thread runs in between.
bool wait_for(const void* object, std::uint64_t until_ns);
// Threads that wait for an object, `most` at most.
void wake(const void* object, unsigned most);

}  // namespace gpufs::testing::scheduling
