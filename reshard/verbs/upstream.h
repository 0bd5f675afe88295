// `reshard verify DIR --upstream [SOURCE]` and `--sha256 FILE`: proves from the packed bytes alone that they are the
// source's. Each source shard is put together again, hashed, and compared with what the manifest records and with what
// others declare; none of the source's bytes is read.
// Threads: one call; `jobs` shards or requests at a time. Memory: jobs x about 1 MiB. Errors: what keeps it from
// judging at all (nothing is declared there, kept headers that do not fit, network); differences are findings.
#pragma once

#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/run/declarations.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

/// Asks a place about the files that the repository was made from: the Hub by one HEAD request a file, a folder by its
/// file SHA256SUMS. Errors: not_found if it declares nothing at all.
[[nodiscard]] Result<Declarations> declarations_of(format::Repository& source, const format::Manifest& manifest,
                                                   unsigned jobs, const std::stop_token& stop);

/// Where the manifest says that it comes from, as a user would write it. Errors: invalid if that is no repository on
/// the Hub.
[[nodiscard]] Result<std::string> origin_place(const format::Manifest& manifest);

struct UpstreamReport {
  uint64_t bytes = 0;                 // of the source shards
  std::vector<std::string> shards;    // one line for each that fits, in the manifest's order
  std::vector<std::string> findings;  // sorted
};

/// Compares every source shard with the manifest's record and with each of `declared`; companions too where they are
/// declared.
[[nodiscard]] Result<UpstreamReport> verify_upstream(format::Repository& packed, const format::Checkpoint& catalogue,
                                                     const std::vector<Declarations>& declared, unsigned jobs,
                                                     format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
