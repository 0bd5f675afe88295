// A packed repository compared with its source. `reshard verify DIR --source SOURCE` reads the source and compares byte
// for byte. `--upstream [SOURCE]` and `--sha256 FILE` prove from the packed bytes alone that they are the source's:
// each source shard is put together again, hashed, and compared with what the manifest records and with what others
// declare. Threads: one call; `jobs` files, shards or requests at a time. Memory: jobs x about 1 MiB. Errors: what
// keeps it from judging at all (nothing is declared there, kept headers that do not fit, network); differences are
// findings.
#pragma once

#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/run/declarations.h"
#include "reshard/verbs/rebuild.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {

/// Every tensor of the source is in the packed repository with the same dtype, shape and bytes, and no other is; so are
/// its files without weights, but for the index, which says where tensors lie and not what they are.
[[nodiscard]] Result<VerifyReport> verify_against_source(format::Repository& packed,
                                                         const format::Checkpoint& catalogue,
                                                         format::Repository& source_repository,
                                                         const format::Checkpoint& source, unsigned jobs,
                                                         format::Progress& progress, const std::stop_token& stop);

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
