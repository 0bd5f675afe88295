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

/// The cursor of the terminal at stdout goes to the first column, so many rows up, and everything from there on is
/// erased.
void begin_redraw(int rows_up);

/// Lines of our own to stderr, a help text say, of whatever length.
void print_help(std::string_view text);

/// Flushes stdout. Returns `status`, or 1 with a message if something that was written is lost (a full disk).
[[nodiscard]] int finish_output(int status);

/// Whether write_output could write to a file that a user has named: tried before the work whose result it is to take,
/// by a file beside it that is removed again; what is there stays as it is. An empty name: there is none to write.
/// Errors: not_found (the folder), conflict (a folder has the name), io.
[[nodiscard]] Result<void> try_output(const std::string& file);

/// Whether a folder can be made where there is none yet, likewise. Errors: conflict (something else is there), io.
[[nodiscard]] Result<void> try_output_folder(const std::string& folder);

/// From here on only results and errors are printed: no progress, and no notes on a terminal. Called by main, before
/// other threads start.
void be_quiet();
[[nodiscard]] bool is_quiet();

/// How a status line looks: dimmed, unless NO_COLOR is set, where it stands below an answer.
enum class Shade { plain, dimmed };

/// The status line of the terminal at stderr becomes this one, clipped to the terminal's width; empty: there is none.
/// It stands where the cursor is, and where an answer on the same terminal has begun its line, on the next one. It is
/// gone before anything else is written, and stays below what an answer goes on with.
void draw_status(std::string_view line, Shade shade);
void clear_status();

/// Whether stderr is a terminal on which a line can be redrawn, and that is wanted (be_quiet).
[[nodiscard]] bool can_redraw();

/// Whether a terminal that a person looks at shows what is written there, and notes are wanted (be_quiet).
[[nodiscard]] bool stderr_is_terminal();
[[nodiscard]] bool stdout_is_terminal();
/// Whether both are the same terminal.
[[nodiscard]] bool streams_share_terminal();

/// Columns of the terminal behind stderr, now.
[[nodiscard]] size_t stderr_columns();

/// Whether a person is there to be asked.
[[nodiscard]] bool can_ask();
/// Asks on stderr and reads a line from stdin: whether it says yes. Nothing is no.
[[nodiscard]] bool ask_yes(std::string_view question);

/// "688.6 GB", "44.1 MB", "512 B": decimal units, as disks and the Hub count.
[[nodiscard]] std::string human_bytes(uint64_t bytes);

}  // namespace dspack::format
