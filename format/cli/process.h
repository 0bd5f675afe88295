// Settings of the running process: signals, standard streams, memory, core dumps.
// Threads: call from the main thread before others start.
#pragma once

#include <stop_token>
#include <thread>

namespace dspack::format {

/// From now on the process leaves no core dump, and other processes of the same user cannot read its memory.
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

/// Opens standard input, output and error on /dev/null, in the wrong direction, if they were closed when the program
/// started: no file or connection gets their numbers, and using them fails as on a closed stream. Must come first in
/// main.
void occupy_standard_streams();

/// If memory runs out where no error can be returned (nlohmann/json's destructor allocates, for example), ends the
/// process with one line and status 1, as other errors do; files on disk are as after a kill. `program`: its name.
void end_where_memory_runs_out(const char* program);

/// If a page of a mapped file cannot be read (SIGBUS: the file was truncated, or its disk failed), ends the process
/// with status 1 and one line that names the file. `program`: its name.
void end_where_a_mapped_file_fails(const char* program);

/// Returns freed blocks of 1 MiB and more to the system. By default the C library keeps some of them for each thread
/// that has ever had one, beyond the memory that the program says it needs.
void return_large_blocks();

/// Ignores SIGPIPE: sending on a connection that the peer has closed, or writing to a closed stdout, returns an error
/// instead of ending the process.
void ignore_broken_connections();

}  // namespace dspack::format
