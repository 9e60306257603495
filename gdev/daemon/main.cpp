/**
 * gdevd, the daemon that knows who may use how much of the GPUs: gdevd SOCKET
 *
 * It has no CUDA context. `gdev run` starts it. Exit status: 0 when it was told to end; 1 on
 * errors, with a line on standard error; 3 if another daemon has the socket.
 */
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

#include "daemon/server.hpp"

int main(int count, char** arguments) {
  if (count != 2 || arguments[1][0] == '-') {
    std::fprintf(stderr, "usage: gdevd SOCKET\n");
    return 2;
  }
  // All that it makes is its user's alone; the socket gets its rights afterwards.
  umask(0077);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a state file beyond the limit of file sizes is an error
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;  // five for each client
    setrlimit(RLIMIT_NOFILE, &files);
  }
  try {
    gdev::server daemon(arguments[1]);
    daemon.run();
    return 0;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "gdevd: %s\n", error.what());
    return error.code().value() == EBUSY ? 3 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gdevd: %s\n", error.what());
    return 1;
  }
}
