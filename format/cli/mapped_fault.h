// Ends the process with a clear message if a mapped file fails.
// Threads: call from the main thread before others start.
#pragma once

namespace dspack::format {

/// If a page of a mapped file cannot be read (SIGBUS: the file was truncated, or its disk failed), ends the process
/// with status 1 and one line that names the file. `program`: its name.
void end_where_a_mapped_file_fails(const char* program);

}  // namespace dspack::format
