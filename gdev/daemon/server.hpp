/**
 * The daemon's sockets: accepts clients and commands, and answers their messages.
 *
 * One thread, which never waits for a client: an answer that a client's socket has no room for ends
 * its connection. Other threads close the files that clients gave. A client is gone when its
 * process is (a pidfd says so, also if a child of it still holds the socket), or when its
 * connection is closed.
 *
 * Rights: root and the daemon's own user may do everything. Others may join the virtual GPUs that
 * are theirs or everybody's, list, and share memory by keys as its mode says (keys.hpp).
 */
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/file_descriptor.hpp"
#include "daemon/accounts.hpp"
#include "daemon/key_answers.hpp"
#include "daemon/observations.hpp"
#include "daemon/turns.hpp"
#include "protocol/messages.hpp"

namespace gdev {

class server {
 public:
  /**
   * Takes the socket's path; a socket that a daemon left there is replaced.
   *
   * The virtual GPUs are kept in a file beside it, path + ".state", so that a daemon that was
   * killed finds them again. Throws std::system_error; EBUSY: another daemon has the path; EEXIST:
   * it is another kind of file; EPERM: others may write in its folder.
   */
  explicit server(std::string path);
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server();

  /** Serves until a command or a signal ends it: SIGTERM and SIGINT must be blocked. */
  void run();

 private:
  struct connection;

  void watch(int file, std::uint64_t what) const;
  void accept_some();
  void receive(connection& from);
  void close(std::uint64_t id);
  void watch_process(const connection& of) const;
  /** Wakes the clients whose page has changed. */
  void send_signals();
  /** Kills the clients that keep others waiting for too long. */
  void end_clients();
  static std::uint64_t now() noexcept;  // nanoseconds

  // observing.cpp
  [[nodiscard]] counter_values daemon_counts(client_id id) const;
  void keep_counts(const connection& of) const;
  [[nodiscard]] int add_unknown(const connection& from, const message& asked);
  [[nodiscard]] message answer_observation(const message& asked);

  // answers.cpp
  [[nodiscard]] message answer(connection& from, const message& asked);
  [[nodiscard]] key_caller caller(const connection& from) const noexcept;
  [[nodiscard]] message join(connection& from, const message& asked);
  [[nodiscard]] message answer_client(connection& from, const message& asked);
  [[nodiscard]] message answer_query(const message& asked) const;
  [[nodiscard]] message answer_command(const message& asked);
  [[nodiscard]] message change_vgpu(const message& asked);
  [[nodiscard]] message change_settings(const connection& from, const message& asked);
  /** Notes a GPU of a client that may command. Says which settings are impossible there. */
  void note_gpu(const connection& from, std::uint64_t number, std::uint64_t total);
  /** Return the largest GPU that is known, and what programs may have of it, in units. */
  [[nodiscard]] std::uint64_t known_gpu() const noexcept;
  [[nodiscard]] std::uint64_t gpu_for_programs() const noexcept;
  void put_memory(const connection& from, message& said, std::uint64_t gpu = 0,
                  std::uint64_t total = 0) const;
  [[nodiscard]] bool may_command(const connection& from) const noexcept;
  void note_clients(bool has_clients) const noexcept;
  void load();
  /** Stores the virtual GPUs. Returns 0 or an errno; the change holds until the daemon ends. */
  [[nodiscard]] int save() const;

  std::string path_;
  accounts accounts_;
  key_answers keys_{accounts_};
  turns turns_{accounts_};
  observations observations_;
  file_descriptor lock_;
  file_descriptor listener_;
  file_descriptor signals_;
  file_descriptor spare_;  // closed for a moment where there are no descriptors
  file_descriptor events_;
  std::map<std::uint64_t, std::unique_ptr<connection>> connections_;
  std::uint64_t next_id_ = 1;
  std::uint64_t largest_gpu_ = 0;  // in units; 0: none is known. Other users' clients may lie
  bool is_stopped_ = false;
};

}  // namespace gdev
