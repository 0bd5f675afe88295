// The places that verbs read: their options, opening them, and the source that an unfinished repack records.
// Threads: the main thread.
#pragma once

#include <memory>
#include <string>

#include "format/checkpoint.h"
#include "format/cli/verb.h"
#include "format/source/repository.h"
#include "reshard/run/declarations.h"
#include "reshard/run/journal.h"

namespace dspack::reshard {

struct NetworkFlags {
  uint64_t limit_rate = 0;  // bytes per second over all connections; 0: no limit
  unsigned retries = 11;    // repetitions of a request, counted from zero whenever bytes arrive
  double pause_second = 1;  // as in RemoteOptions
};

/// Adds --jobs, described as `what` ("Files read at a time"). Its maximum keeps connections and files below the usual
/// limit of 1,024 open files.
format::OptionTable::Option add_jobs(format::OptionTable& table, unsigned& jobs, const std::string& what);
/// Adds --limit-rate, and keys of --dev.
void add_network_options(format::OptionTable& table, NetworkFlags& flags);

/// How long transferring `bytes` takes: at the limit, if set, else at two usual rates. `what`: "download", "upload".
[[nodiscard]] std::string transfer_words(uint64_t bytes, uint64_t limit_rate, std::string_view what);

/// Everything that a verb needs from its process.
struct Context {
  format::RemoteOptions remote;
  std::stop_token stop;
  format::Progress& progress;
};

/// The environment's options, changed by the flags. Notes about requests, such as pauses, are passed to the progress.
[[nodiscard]] Context make_context(format::Process& process, const NetworkFlags& flags = {});

/// A place and its catalogue.
struct Opened {
  std::unique_ptr<format::Repository> repository;
  format::Checkpoint checkpoint;
};

[[nodiscard]] Result<Opened> open_place(const std::string& place, unsigned jobs, const Context& context);
/// Errors: also invalid, if the place is not a packed repository.
[[nodiscard]] Result<Opened> open_packed(const std::string& place, unsigned jobs, const Context& context);

/// The source of unfinished work in `folder`, as open_repository takes it. `named`: the user's choice; empty: none.
[[nodiscard]] Result<std::string> begun_source(const std::string& folder, const std::string& named,
                                               const JournalHead& begun);

/// Reads a local file written by sha256sum.
[[nodiscard]] Result<Declarations> read_checksum_list(const std::string& path);

}  // namespace dspack::reshard
