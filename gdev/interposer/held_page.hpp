/** The page that this process shares with the daemon, and what goes with it (client.hpp). */
#pragma once

#include <mutex>

#include "interposer/memory_in_use.hpp"
#include "protocol/account.hpp"

namespace gdev {

/** Keeps the page where it is. Held for moments: frees of memory wait for it. */
class held_page {
 public:
  /** waits: until another thread has let go of the page; else there is none for this one then. */
  explicit held_page(bool waits) noexcept;

  /** Tells whether there is a page. */
  [[nodiscard]] explicit operator bool() const noexcept { return page_ != nullptr; }
  [[nodiscard]] client_page* operator->() const noexcept { return page_; }
  /** Only if it waits. */
  [[nodiscard]] static memory_in_use& memory() noexcept;

 private:
  std::unique_lock<std::mutex> lock_;
  client_page* page_ = nullptr;
};

}  // namespace gdev
