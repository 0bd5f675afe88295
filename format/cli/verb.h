// A program's command line as a table of verbs, and its runner: parsing, help, version, signals, progress and exit
// status.
// Threads: main. Errors: a command line that cannot be parsed is wrong usage, status 2.
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

/// Exit status after Ctrl-C, also if it only cut an answer short.
inline constexpr int kInterruptedStatus = 130;

/// Services of the process for the verb that it runs.
class Process {
 public:
  /// From the first call on, Ctrl-C and SIGTERM request a stop of this token (InterruptWatch). Call it before other
  /// threads start.
  [[nodiscard]] std::stop_token stop();
  /// Prints to stderr.
  [[nodiscard]] TerminalProgress& progress() { return progress_; }

 private:
  std::optional<InterruptWatch> watch_;
  TerminalProgress progress_;
};

/// A verb whose command line has been parsed, or is about to be.
struct Invocation {
  std::any options;                          // std::shared_ptr<Options of the verb>
  std::function<Result<void>()> complete;    // completes and checks interdependent options. Errors: wrong usage
  std::function<Result<int>(Process&)> run;  // returns the exit status
};

struct Verb {
  std::string name;   // the first argument; empty: the default verb
  std::string about;  // one line for the list of verbs
  std::function<Invocation(OptionTable&)> declare;
  std::vector<std::string> aliases = {};  // other names; of the default verb, words that may stand for it
};

/// `Options` may have a member `Result<void> complete()`, called after all options are read: it derives values from
/// several of them. Errors: options that contradict each other.
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

/// An option of similar programs that users may try, and its equivalent here.
struct PeerOption {
  std::vector<std::string> names;  // "-c", "--ctx-size"; an option of the verb with the same name takes precedence
  std::string own;                 // the equivalent option of this program; empty: see `advice`
  std::string advice = {};         // how it differs
};

struct Program {
  std::string name;
  std::vector<Verb> verbs;                        // the first is the default verb, without a name
  std::string when_interrupted;                   // hint after an interruption; empty: none
  std::function<std::string()> build_facts = {};  // lines that --version prints after the version; empty function: none
  std::vector<PeerOption> peer_options = {};
  std::vector<std::string> secret_options = {};  // "--api-key": hidden, since all users can list command lines
};

/// A parsed command line: a verb to run, or a text for the user.
struct CommandLine {
  std::optional<Invocation> verb;
  bool is_quiet = false;  // --quiet, which every verb accepts
  int status = 0;         // without a verb: 0 for help and version (to stdout), 2 for wrong usage
  std::string text;       // without a verb; one line for wrong usage
};

/// `arguments`: without the program's name. "help [VERB]" is the same as "[VERB] --help". A first word that resembles a
/// verb and is no existing file or folder is wrong usage; the text suggests the verb.
[[nodiscard]] CommandLine parse_command_line(const Program& program, std::vector<std::string> arguments);

/// The whole of main. Returns the exit status: 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted).
[[nodiscard]] int run_program(const Program& program, int count, char** values);

}  // namespace dspack::format
