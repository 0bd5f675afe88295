// A program's command line as a table of verbs, and its runner: parsing, help, version, signals, progress and exit
// status.
// Threads: main. Errors: a command line that cannot be understood is wrong usage, status 2.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "format/cli/option_table.h"
#include "format/cli/output.h"
#include "format/cli/process.h"
#include "format/cli/terminal_progress.h"

namespace dspack::format {

/// Exit status after Ctrl-C, also of an answer that was cut short by it.
inline constexpr int kInterruptedStatus = 130;

/// What a verb gets from the process that runs it.
class Process {
 public:
  /// From the first call on, Ctrl-C and SIGTERM request a stop of this token (InterruptWatch). Call it before other
  /// threads start.
  [[nodiscard]] std::stop_token stop();
  /// On stderr.
  [[nodiscard]] TerminalProgress& progress() { return progress_; }

 private:
  std::optional<InterruptWatch> watch_;
  TerminalProgress progress_;
};

/// A verb of a command line that is parsed.
struct Invocation {
  std::any options;                          // std::shared_ptr<Options of the verb>
  std::function<Result<void>()> complete;    // what options mean together. Errors: wrong usage
  std::function<Result<int>(Process&)> run;  // the exit status
};

struct Verb {
  std::string name;   // the first argument; empty: the verb of a command line that names none
  std::string about;  // a line for the list of verbs
  std::function<Invocation(OptionTable&)> declare;
  std::vector<std::string> aliases = {};  // other words for it; of the verb without a name, words that may be said
};

/// `Options` may have a member `Result<void> complete()`, called when all options were read: it fills in what several
/// of them say together. Errors: options that contradict each other.
template <class Options>
Verb make_verb(const std::string& name, const std::string& about, void (*add)(OptionTable&, Options&),
               Result<int> (*run)(const Options&, Process&)) {
  return {.name = name, .about = about, .declare = [add, run](OptionTable& table) -> Invocation {
            const auto options = std::make_shared<Options>();
            add(table, *options);
            const auto complete = [options]() -> Result<void> {
              if constexpr (requires { options->complete(); })
                return options->complete();
              else
                return {};
            };
            return {options, complete, [options, run](Process& process) { return run(*options, process); }};
          }};
}

/// An option of other programs of this kind, which users bring along, and what to write here.
struct PeerOption {
  std::vector<std::string> names;  // "-c", "--ctx-size"; a verb that has the name itself takes it
  std::string own;                 // the option of this program; empty: `advice` says what to do
  std::string advice = {};         // what is not as there
};

struct Program {
  std::string name;
  std::vector<Verb> verbs;                        // the first has no name
  std::string when_interrupted;                   // a hint after an interruption; empty: none
  std::function<std::string()> build_facts = {};  // lines that --version prints after the version; none: no more
  std::vector<PeerOption> peer_options = {};
  std::vector<std::string> secret_options = {};  // "--api-key": everybody on a machine may list its command lines
};

/// A command line: a verb to run, or a text for the user.
struct CommandLine {
  std::optional<Invocation> verb;
  bool is_quiet = false;  // --quiet, which every verb has
  int status = 0;         // without a verb: 0 for help and version, which go to stdout, and 2 for a mistake
  std::string text;       // without a verb; of a mistake one line
};

/// `arguments` without the program's name. "help [VERB]" is the same as "[VERB] --help"; a word that is nearly a verb,
/// and no folder or file, is asked back.
[[nodiscard]] CommandLine parse_command_line(const Program& program, std::vector<std::string> arguments);

/// All of main: the exit status is 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted).
[[nodiscard]] int run_program(const Program& program, int count, char** values);

}  // namespace dspack::format
