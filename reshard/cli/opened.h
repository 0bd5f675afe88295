// What all verbs do first and last: open the places they are given, and tell why they failed.
// Threads: the main thread.
#pragma once

#include <memory>
#include <string>

#include "format/checkpoint.h"
#include "reshard/cli/commands.h"
#include "reshard/run/declarations.h"
#include "reshard/run/journal.h"

namespace dspack::reshard {

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

/// Prints the error; returns the exit status.
[[nodiscard]] int fail(const Error& error);

/// The status, or that of the error.
[[nodiscard]] inline int status_of(const Result<int>& outcome) {
  return outcome ? *outcome : fail(outcome.error());
}

}  // namespace dspack::reshard
