// A file of one KV block: consecutive positions of a conversation with their rows of the KV cache, as a safetensors
// file. A prefix cache on disk is a folder of such files; a saved chat is one file, which also has the messages.
//
//   __metadata__  "dspack_kv": "1", the version; "model": KvIdentity::digest; "first": the first position;
//                 "parent": names the positions before it; "sha256": over everything after the header;
//                 "goes_on": "false" if no sequence can continue after it (KvBlock); "precision": its name; files
//                 without it are exact
//   tokens        U32 [positions]
//   kv.PLANE      U8 [layers, rows, row bytes], for each plane that has rows (CachePlane::block_rows)
//   text          U8 [bytes], if there is any
//
// A file may be hostile: no size in it is used before it was checked against the running model's shape, and rows are
// used only if all bytes match the digest.
// Threads: thread-safe (pure functions, and files of the caller's). Errors: those of files; invalid (breaks the format,
// another model's), unsupported (a newer version), corrupt (bytes that do not match the digest).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/digest.h"
#include "format/file_system.h"
#include "kernels/precision.h"
#include "runtime/model/kv_block.h"

namespace dspack::runtime {

/// Everything besides tokens that rows depend on. Rows with equal identities are interchangeable.
struct KvIdentity {
  format::Digest digest;  // over weights, configuration, layer map, planes, precision
  KvShape shape;
  uint32_t context = 0;                                      // positions of a sequence; not part of the digest
  kernels::Precision precision = kernels::Precision::exact;  // in which rows were computed
};

/// Longer headers are refused; those written here have less than 1 KB.
inline constexpr uint64_t kMaxKvHeaderBytes = 64ULL << 10U;
/// Limit on the messages beside the rows.
inline constexpr uint64_t kMaxKvTextBytes = 16ULL << 20U;

/// A file's contents besides the block.
struct KvFileNotes {
  format::Digest parent;  // names the block before it; for the first block, the identity
  std::string text;
};
struct KvFile {
  KvBlock block;
  KvFileNotes notes;
};

/// A header that fits the model.
struct KvHeader {
  format::Digest parent;
  format::Digest sha256;
  uint32_t first = 0;
  uint32_t positions = 0;
  bool goes_on = true;
  uint64_t text_bytes = 0;
  uint64_t data_start = 0;  // offset in the file
  [[nodiscard]] KvExtent extent() const { return {.first = first, .end = first + positions, .goes_on = goes_on}; }
};

/// Parses and checks a header's JSON, in a file of `file_bytes` bytes.
[[nodiscard]] Result<KvHeader> parse_kv_header(std::string_view json, uint64_t file_bytes, const KvIdentity& identity);

/// Header and tokens without the rows, for the index of a folder. The digest is not checked.
struct KvContents {
  KvHeader header;
  std::vector<uint32_t> tokens;
};
[[nodiscard]] Result<KvContents> read_kv_contents(const format::ReadFile& file, const KvIdentity& identity);
[[nodiscard]] Result<KvFile> read_kv_file(const format::ReadFile& file, const KvIdentity& identity);

/// The precision that the header of a KV file, of any model, names. Absent: it declares no KV file, or a precision of
/// another version.
[[nodiscard]] std::optional<kernels::Precision> kv_file_precision(const format::ReadFile& file);
/// Whether the header declares a KV file, of any model.
[[nodiscard]] bool is_kv_file(const format::ReadFile& file);

/// Bytes of a file with such a block and no text.
[[nodiscard]] uint64_t kv_file_bytes(const KvIdentity& identity, const KvExtent& extent);
/// Replaces the file atomically, after all bytes are on disk. Only its owner may read it: it contains what was said.
[[nodiscard]] Result<void> write_kv_file(format::FileSystem& files, const format::Path& path, const KvBlock& block,
                                         const KvFileNotes& notes, const KvIdentity& identity);

}  // namespace dspack::runtime
