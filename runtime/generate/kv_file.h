// A file of KV blocks' kind: consecutive positions of a conversation with their rows of the KV cache, as a safetensors
// file. A prefix cache on disk is a folder of them; a saved chat is one, and has the messages beside.
//
//   __metadata__  "dspack_kv": "1", the version; "model": KvIdentity::digest; "first": the first position;
//                 "parent": what comes before it; "sha256": of all that follows the header; "goes_on": "false" where
//                 no sequence can go on after it (KvBlock)
//   tokens        U32 [positions]
//   kv.PLANE      U8 [layers, rows, row bytes], for each plane that has rows (CachePlane::block_rows)
//   text          U8 [bytes], if there is one
//
// A file is what a stranger may have put there: nothing of it decides memory before it was checked against the shape
// that the running model has, and rows count only when all bytes have the digest.
// Threads: thread-safe (pure functions, and files of the caller's). Errors: those of files; invalid (breaks the
// format, another model's), unsupported (a newer version), corrupt (other bytes than the digest says).
#pragma once

#include <string>
#include <string_view>

#include "format/digest.h"
#include "format/file_system.h"
#include "runtime/model/kv_block.h"

namespace dspack::runtime {

/// What rows depend on besides the tokens. Rows of one identity may be used in place of each other.
struct KvIdentity {
  format::Digest digest;  // of weights, configuration, layer map, planes, precision
  KvShape shape;
  uint32_t context = 0;  // positions of a sequence; no part of the digest
};

/// The header of a longer file is refused: ours take less than 1 KB.
inline constexpr uint64_t kMostKvHeaderBytes = 64ULL << 10U;
/// Messages beside the rows.
inline constexpr uint64_t kMostKvTextBytes = 16ULL << 20U;

/// What a file has besides the block.
struct KvFileNotes {
  format::Digest parent;  // names what comes before; of the first block the identity
  std::string text;
};
struct KvFile {
  KvBlock block;
  KvFileNotes notes;
};

/// What a header says, once it fits the model.
struct KvHeader {
  format::Digest parent;
  format::Digest sha256;
  uint32_t first = 0;
  uint32_t positions = 0;
  bool goes_on = true;
  uint64_t text_bytes = 0;
  uint64_t data_start = 0;  // of the file
  [[nodiscard]] KvExtent extent() const { return {.first = first, .end = first + positions, .goes_on = goes_on}; }
};

/// Of a header's JSON, in a file of so many bytes.
[[nodiscard]] Result<KvHeader> parse_kv_header(std::string_view json, uint64_t file_bytes, const KvIdentity& identity);

/// Header and tokens without the rows: what an index of a folder needs. The digest is not checked.
struct KvContents {
  KvHeader header;
  std::vector<uint32_t> tokens;
};
[[nodiscard]] Result<KvContents> read_kv_contents(const format::ReadFile& file, const KvIdentity& identity);
[[nodiscard]] Result<KvFile> read_kv_file(const format::ReadFile& file, const KvIdentity& identity);

/// Whether it says that it is one, of whatever model.
[[nodiscard]] bool is_kv_file(const format::ReadFile& file);

/// Bytes of a file with such a block and no text.
[[nodiscard]] uint64_t kv_file_bytes(const KvIdentity& identity, const KvExtent& extent);
/// Replaces what is there once all of it is on the disk. Nobody but its owner may read it: it says what was said.
[[nodiscard]] Result<void> write_kv_file(format::FileSystem& files, const format::Path& path, const KvBlock& block,
                                         const KvFileNotes& notes, const KvIdentity& identity);

}  // namespace dspack::runtime
