// Compares a packed repository with its source. `reshard verify DIR --source SOURCE` reads the source and compares byte
// for byte. `--upstream [SOURCE]` and `--sha256 FILE` prove from the packed bytes alone that they are the source's:
// each source shard is rebuilt, hashed, and compared with the manifest's record and with what others declare.
// Threads: one call; `jobs` files, shards or requests at a time. Memory: jobs x about 1 MiB. Errors: those that prevent
// a comparison (nothing is declared, kept headers that do not fit, network); differences are findings.
#pragma once

#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/run/declarations.h"
#include "reshard/verbs/rebuild.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {

/// Checks that the packed repository holds exactly what its recipe makes of the source: every tensor with its dtype,
/// shape and bytes, and no other; and the files without weights, except the index, which only locates tensors.
[[nodiscard]] Result<VerifyReport> verify_against_source(format::Repository& packed,
                                                         const format::Checkpoint& catalogue,
                                                         format::Repository& source_repository,
                                                         const format::Checkpoint& source, unsigned jobs,
                                                         format::Progress& progress, const std::stop_token& stop);

/// Asks a place about the files that the repository was made from: the Hub by one HEAD request per file, a folder by
/// its file SHA256SUMS. Errors: not_found if it declares nothing at all.
[[nodiscard]] Result<Declarations> declarations_of(format::Repository& source, const format::Manifest& manifest,
                                                   unsigned jobs, const std::stop_token& stop);

/// The origin in the manifest, as a user would write it. Errors: invalid if it is not a repository on the Hub.
[[nodiscard]] Result<std::string> origin_place(const format::Manifest& manifest);

struct UpstreamReport {
  uint64_t bytes = 0;                 // total size of the source shards
  std::vector<std::string> shards;    // one line per matching shard, in the manifest's order
  std::vector<std::string> findings;  // sorted
};

/// Compares every source shard with the manifest's record and with each of `declared`; also the companions that are
/// declared.
[[nodiscard]] Result<UpstreamReport> verify_upstream(format::Repository& packed, const format::Checkpoint& catalogue,
                                                     const std::vector<Declarations>& declared, unsigned jobs,
                                                     format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
