// What a program writes for people and for pipes. Text for people passes the one filter of foreign_text.h here, so that
// no place that prints can forget it; failures of stdout are noticed.
// Threads: the functions may be called from any thread.
#pragma once

#include <string_view>

namespace dspack::format {

/// A report to stdout, in lines: unprintable characters become escapes, and no URL shows a password. A failure is
/// remembered for finish_output; so with the next two. (A line feed stays: a piece of text from outside that could have
/// one passes brief() or printable() before.)
void print_out(std::string_view text);

/// One line to stdout, a finding say: as message_line has it.
void print_line(std::string_view text);

/// JSON to stdout: unprintable characters are spelt \uXXXX, so that its values stay what they are.
void print_json(std::string_view json);

/// To stdout what the user asked for itself (a model's answer, a rendered prompt, a page): a pipe or a file gets the
/// bytes as they are, a terminal what printable_text makes of them.
void print_data(std::string_view data);

/// Writes one line to stderr, as message_line has it; a stderr that is closed is no reason to fail.
void print_error(std::string_view line);

/// Lines of our own to stderr, a help text say, of whatever length.
void print_help(std::string_view text);

/// Flushes stdout. Returns `status`, or 1 with a message if something that was written is lost (a full disk).
[[nodiscard]] int finish_output(int status);

}  // namespace dspack::format
