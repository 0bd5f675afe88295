// What becomes of a process whose mapped file fails.
// Threads: call from the main thread before others start.
#pragma once

namespace dspack::format {

/// A page of a mapped file that cannot be read (SIGBUS: the file became shorter, or its disk failed) ends the process
/// with one line, which names the file, and status 1. `program`: its name.
void end_where_a_mapped_file_fails(const char* program);

}  // namespace dspack::format
