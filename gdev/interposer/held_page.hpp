/** The page that this process shares with the daemon (client.hpp), for what is counted. */
#pragma once

#include <mutex>

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

 private:
  std::unique_lock<std::mutex> lock_;
  client_page* page_ = nullptr;
};

}  // namespace gdev
