// Options that every verb which may read over a network has.
// Threads: the main thread. Lifetime: the flags must outlive the parsing.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

struct NetworkFlags {
  uint64_t limit_rate = 0;  // bytes per second over all connections; 0: none
  unsigned retries = 11;    // of a request, counted from the last byte that came
};

/// --limit-rate and --retries.
void add_network_options(CLI::App& verb, NetworkFlags& flags);

/// The environment's options, changed as the flags say. Every pause of a request is told to `progress`.
[[nodiscard]] format::RemoteOptions remote_options(const NetworkFlags& flags, format::Progress& progress);

/// --jobs of a run that packs, where nothing was said: files of a folder at a time, or the most connections.
[[nodiscard]] unsigned default_jobs(bool is_local);

/// --jobs: so many that their connections and files stay below the usual limit of 1,024 open files.
CLI::Option* add_jobs(CLI::App& verb, unsigned& jobs, const std::string& what);

/// Accepts a grouping alone: "expert", "expert:N", "layer" or "shard:SIZE"; anything else is wrong usage.
[[nodiscard]] CLI::Validator is_grouping();

/// A size such as "5GB"; anything else is wrong usage.
CLI::Option* add_size(CLI::App& verb, const std::string& name, uint64_t& bytes, const std::string& what);

}  // namespace dspack::reshard
