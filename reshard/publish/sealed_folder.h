// The folder to publish: sealed, complete, and identical to its manifest.
// Threads: one call at a time; digests are computed `jobs` files at a time. Errors: conflict (not sealed, unfinished),
// corrupt (differs from what was sealed; the file is named), io, and those of the manifest.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "format/digest.h"
#include "format/file_system.h"
#include "format/hub/listing.h"
#include "format/progress.h"

namespace dspack::reshard {

struct LocalFile {
  std::string path;
  uint64_t size_bytes = 0;
  format::Digest sha256;  // from the manifest; the manifest's own is computed as it is read
  std::string blob;       // git's hash of the content, hex; empty: not computed (see name_blobs)
};

struct SealedFolder {
  format::Path folder;
  std::vector<LocalFile> files;    // by path, including the manifest
  format::Digest manifest_sha256;  // identifies what is published
  uint64_t total_bytes = 0;
};

/// Reads the manifest and compares it with the names and sizes in the folder. Names that begin with a dot are skipped,
/// as everywhere.
[[nodiscard]] Result<SealedFolder> open_sealed(const format::Path& folder, format::FileSystem& files,
                                               const std::stop_token& stop);

/// Reads every file and compares it with its digest.
[[nodiscard]] Result<void> check_digests(const SealedFolder& sealed, format::FileSystem& files, unsigned jobs,
                                         format::Progress& progress, const std::stop_token& stop);

/// Computes LocalFile::blob of each file that `remote` has as a regular file of the same size. Errors: also corrupt, if
/// the content does not match its SHA-256.
[[nodiscard]] Result<void> name_blobs(SealedFolder& sealed, const format::HubTree& remote, format::FileSystem& files,
                                      unsigned jobs, const std::stop_token& stop);

}  // namespace dspack::reshard
