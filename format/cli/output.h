// What a program writes for people and for pipes: text made printable, and failures of stdout noticed.
// Threads: the functions may be called from any thread.
#pragma once

#include <string>
#include <string_view>

namespace dspack::format {

/// Text from outside on one line: control characters, which could forge lines or steer a terminal, become "\\xNN".
[[nodiscard]] std::string printable(std::string_view text);

/// Writes to stdout as it is. A failure is remembered for finish_output.
void print_out(std::string_view text);

/// Writes one line to stderr; a stderr that is closed is no reason to fail.
void print_error(std::string_view line);

/// Flushes stdout. Returns `status`, or 1 with a message if something that was written is lost (a full disk).
[[nodiscard]] int finish_output(int status);

}  // namespace dspack::format
