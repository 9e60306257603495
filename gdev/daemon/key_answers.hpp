/** The daemon's answers about memory shared by keys: checks messages, and charges segments. */
#pragma once

#include "base/file_descriptor.hpp"
#include "daemon/accounts.hpp"
#include "daemon/closer.hpp"
#include "daemon/keys.hpp"
#include "protocol/messages.hpp"

namespace gdev {

/** The connection that a message came from. */
struct key_caller {
  client_id id = 0;
  bool is_client = false;  // it has joined a virtual GPU
  key_user who;
};

class key_answers {
 public:
  /** charged: the accounts of the virtual GPUs; they must outlive this. */
  explicit key_answers(accounts& charged);

  /** Tells whether a descriptor that comes with a message is to be received; answer() takes it. */
  [[nodiscard]] bool takes_descriptor(const message& asked, const key_caller& from) const noexcept;

  /**
   * Answers a message of which is_of_keys() is true. given: the descriptor that came with it. sent:
   * set to a descriptor that is to be sent with the answer, and stays open until the next call.
   */
  [[nodiscard]] message answer(const key_caller& from, const message& asked, file_descriptor given,
                               int& sent);

  /** A client is gone. */
  void leave(client_id client) noexcept;

 private:
  [[nodiscard]] int make(const key_caller& from, const message& asked, file_descriptor given,
                         message& said);
  [[nodiscard]] int attach(const key_caller& from, const message& asked, message& said, int& sent);
  [[nodiscard]] int describe(const key_caller& from, const message& asked, message& said) const;
  /** Closes the chunks of dropped segments, and gives back what they were charged. */
  void settle() noexcept;

  accounts& charged_;
  keys keys_;
  closer closer_;
};

}  // namespace gdev
