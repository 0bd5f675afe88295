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
  uint64_t limit_rate = 0;  // bytes per second over all connections; 0: none
  unsigned retries = 11;    // of a request, counted from the last byte that came
  double pause_second = 1;  // RemoteOptions
};

/// --jobs of `what`, for instance "Files read at a time": so many that their connections and files stay below the
/// usual limit of 1,024 open files.
format::OptionTable::Option add_jobs(format::OptionTable& table, unsigned& jobs, const std::string& what);
/// --limit-rate, and keys of --dev.
void add_network_options(format::OptionTable& table, NetworkFlags& flags);

/// How long so many bytes take: at the limit, if there is one, else at two usual rates. `what`: "download", "upload".
[[nodiscard]] std::string transfer_words(uint64_t bytes, uint64_t limit_rate, std::string_view what);

/// What every verb needs from its process.
struct Context {
  format::RemoteOptions remote;
  std::stop_token stop;
  format::Progress& progress;
};

/// The environment's options, changed as the flags say. Every pause of a request is told to the progress.
[[nodiscard]] Context make_context(format::Process& process, const NetworkFlags& flags = {});

/// A place and its catalogue.
struct Opened {
  std::unique_ptr<format::Repository> repository;
  format::Checkpoint checkpoint;
};

[[nodiscard]] Result<Opened> open_place(const std::string& place, unsigned jobs, const Context& context);
/// Refuses a place that is no packed repository.
[[nodiscard]] Result<Opened> open_packed(const std::string& place, unsigned jobs, const Context& context);

/// Where the source of unfinished work in `folder` is, as open_repository takes it. `named`: by the user; empty: not.
[[nodiscard]] Result<std::string> begun_source(const std::string& folder, const std::string& named,
                                               const JournalHead& begun);

/// A local file that sha256sum wrote.
[[nodiscard]] Result<Declarations> read_checksum_list(const std::string& path);

}  // namespace dspack::reshard
