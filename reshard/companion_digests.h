// Digests of the files of a checkpoint that hold no weights, by the names that they have in an ordinary one; so that
// two places can be compared. The index is left out: it says where tensors lie, not what they are. Threads: one call;
// `jobs` files are read at a time. Errors: as the repository.
#pragma once

#include <map>
#include <set>
#include <string>

#include "format/checkpoint.h"
#include "reshard/companions.h"

namespace dspack::reshard {

using CompanionDigests = std::map<std::string, format::Digest>;

/// A place whose companions are compared. A packed one is believed what its manifest says of them.
struct CompanionPlace {
  format::Repository& repository;
  const format::Checkpoint& catalogue;
};

/// Those that a packed repository has beside the files which are its own.
[[nodiscard]] CompanionDigests recorded_companions(const format::Manifest& manifest);

/// The names of those that are there; of an ordinary place that cannot be listed, of those that might be.
[[nodiscard]] Result<std::set<std::string>> companion_names(const CompanionPlace& place, const std::stop_token& stop);

/// Digests of all that a packed place records; of an ordinary one, of those of `names` that are there. Adds to
/// `bytes_read`.
[[nodiscard]] Result<CompanionDigests> companion_digests(const CompanionPlace& place,
                                                         const std::set<std::string>& names, unsigned jobs,
                                                         uint64_t& bytes_read, const std::stop_token& stop);

}  // namespace dspack::reshard
