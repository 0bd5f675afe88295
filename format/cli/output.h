// A program's output for people and for pipes, and the status line of its terminal. Text for people passes the filter
// of foreign_text.h here, so no print site can forget it and no name can control the terminal; write failures on stdout
// are noticed. Threads: thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::format {

/// Prints a report of one or more lines to stdout: unprintable characters become escapes, and URLs lose their
/// passwords. A failure is remembered for finish_output, as by all functions that print to stdout. (Line feeds stay:
/// text from outside that may contain one must pass brief() or printable() first.)
void print_out(std::string_view text);

/// Prints one line, such as a finding, to stdout, as message_line makes it.
void print_line(std::string_view text);

/// Prints JSON to stdout: unprintable characters become \uXXXX, which leaves its values unchanged.
void print_json(std::string_view json);

/// Prints to stdout what the user asked for (a model's answer, a rendered prompt, a page): a pipe or a file gets the
/// bytes unchanged, a terminal gets them through printable_text.
void print_data(std::string_view data);

/// Prints one line to stderr, as message_line makes it; a closed stderr is not an error.
void print_error(std::string_view line);

/// Starts or ends dimming of what follows on stdout: on a terminal, unless NO_COLOR is set (no-color.org).
void dim_data(bool on);

/// Moves the cursor of the terminal at stdout to the first column, `rows_up` rows up, and erases everything from there
/// on.
void begin_redraw(int rows_up);

/// Prints text of our own, such as a help text, to stderr, at any length.
void print_help(std::string_view text);

/// Flushes stdout. Returns `status`, or 1 with a message if any output was lost (a full disk).
[[nodiscard]] int finish_output(int status);

/// Checks, before long work, that write_output could write its result to a file that the user has named: creates a file
/// beside it and removes it again; an existing file is not changed. An empty name: nothing to check. Errors: not_found
/// (the folder), conflict (a folder has the name), io.
[[nodiscard]] Result<void> try_output(const std::string& file);

/// Checks in the same way that a folder exists or can be created. Errors: conflict (something else has the name), io.
[[nodiscard]] Result<void> try_output_folder(const std::string& folder);

/// From now on only results and errors are printed: no progress, and no notes on a terminal. Called by main, before
/// other threads start.
void be_quiet();
[[nodiscard]] bool is_quiet();

/// Look of a status line: `dimmed` is for a line below an answer, and has no effect if NO_COLOR is set.
enum class Shade { plain, dimmed };

/// Replaces the status line of the terminal at stderr, clipped to the terminal's width; empty: removes it. It is drawn
/// at the cursor, or on the next line if an answer on the same terminal has begun its line. It is erased before
/// anything else is written, and stays below an answer as that continues.
void draw_status(std::string_view line, Shade shade);
void clear_status();

/// Whether stderr is a terminal on which a line can be redrawn, and that is wanted (be_quiet).
[[nodiscard]] bool can_redraw();

/// Whether stderr is a terminal, and notes are wanted (be_quiet).
[[nodiscard]] bool stderr_is_terminal();
[[nodiscard]] bool stdout_is_terminal();
/// Whether both are the same terminal.
[[nodiscard]] bool streams_share_terminal();

/// Current width of the terminal at stderr; 80 if unknown.
[[nodiscard]] size_t stderr_columns();

/// Whether stdin and stderr are terminals, so that a person can be asked.
[[nodiscard]] bool can_ask();
/// Asks on stderr and reads a line from stdin: whether it is yes. An empty line means no.
[[nodiscard]] bool ask_yes(std::string_view question);

/// "688.6 GB", "44.1 MB", "512 B": decimal units, as disks and the Hub count.
[[nodiscard]] std::string human_bytes(uint64_t bytes);

}  // namespace dspack::format
