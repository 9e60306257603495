#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interposer/client.hpp"
#include "interposer/held_page.hpp"
#include "protocol/account.hpp"
#include "protocol/counters.hpp"

namespace gdev {

namespace {

/** Stores counts in the page, if there is one. */
void store(const held_page& page, const own_counts& counts) noexcept {
  for (std::size_t i = 0; page && i < own_counters; ++i) {
    page->counts[i].store(counts[i], std::memory_order_relaxed);
  }
}

}  // namespace

counts_question read_question() noexcept {
  const held_page page(true);
  if (!page) {
    return {};
  }
  const std::uint32_t asked = page->asked.load(std::memory_order_relaxed);
  return {asked, asked == page->answered.load(std::memory_order_relaxed),
          page->known_names.load(std::memory_order_relaxed)};
}

void publish_counts(std::uint32_t asked, const own_counts& counts) noexcept {
  const held_page page(true);
  store(page, counts);
  if (page) {
    // Release: the daemon that sees this sees the counts.
    page->answered.store(asked, std::memory_order_release);
  }
}

void publish_last_counts(const own_counts& counts) noexcept { store(held_page(false), counts); }

}  // namespace gdev
