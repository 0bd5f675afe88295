// Settings of the running process: signals, standard streams, memory, core dumps.
// Threads: call from the main thread before others start.
#pragma once

#include <stop_token>
#include <thread>

namespace dspack::format {

/// From here on the process leaves no core dump, and its memory cannot be read by other processes of the same user.
void forbid_core_dumps();

/// Turns Ctrl-C and SIGTERM into a stop request; the second one ends the process at once with status 130.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread thread_;
};

/// Standard input, output and error that were closed when the program was started are opened, on /dev/null and the
/// wrong way round: no file or connection gets their numbers, and using them fails as it would. First of all in main.
void occupy_standard_streams();

/// Memory that runs out where no error can be returned (nlohmann/json's destructor allocates, for one) ends the process
/// with one line and status 1, as it does elsewhere; what is on disk is as after a kill. `program`: its name.
void end_where_memory_runs_out(const char* program);

/// Blocks of a MiB and more go back to the system when they are freed. By default the C library keeps some of them for
/// each thread that has ever had one, beyond what the program says that it needs.
void return_large_blocks();

/// A peer that closes a connection while something is sent over it is then an error of that sending, not a signal
/// (SIGPIPE) that ends the process; a closed stdout likewise.
void ignore_broken_connections();

}  // namespace dspack::format
