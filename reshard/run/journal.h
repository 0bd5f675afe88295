// The journal of one reshard run: what is durably done. Append-only; every record is written after the bytes that it
// describes are durable, and is itself durable when the call returns. Specified in docs/format.md.
// Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: io, budget; a damaged journal is a load status.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/compressed/frames.h"
#include "format/digest.h"
#include "format/file_system.h"
#include "format/json.h"
#include "format/record_log.h"
#include "format/source/repository.h"
#include "format/tensor_pass.h"
#include "kernels/convert.h"

namespace dspack::reshard {

struct Plan;
struct RunScope;

/// The digests and loss of a tensor that has streamed by.
struct TensorDigests {
  format::Digest whole;                    // the written bytes; the source bytes of a tensor that is not written
  std::vector<format::Digest> row_blocks;  // empty unless rows_per_block applies
  std::vector<format::Digest> needed{};    // digests of the tensors given to a conversion, in the order of Copy::needs
  std::optional<kernels::Loss> loss{};     // set for a conversion that rounds
};

/// A source shard whose wanted bytes were all read and are durable in partial files.
struct ShardDone {
  uint64_t shard = 0;                    // catalogue index of the file
  std::optional<format::Digest> sha256;  // if it was read whole
  std::vector<TensorDigests> tensors;    // in the order of Plan::shards[shard]
};

using TensorBegun = format::TensorSumsBegun;

/// A source shard whose beginning was read and is durable in partial files. `at` 0: discards earlier records of the
/// shard.
struct ShardBegun {
  uint64_t shard = 0;                         // catalogue index of the file
  uint64_t at = 0;                            // offset in the shard of the next byte
  std::optional<format::Sha256State> hash{};  // digest of the preceding bytes, if the shard is read whole
  uint64_t first = 0;                         // number of the shard's copies in earlier records
  std::vector<TensorDigests> tensors{};       // complete tensors, from copy `first` on
  std::vector<TensorBegun> begun{};           // all copies of the tensor under way; empty: none
};

/// A shard's progress is recorded after this many bytes for the first time in a run, then after twice as many each
/// time, up to 64 times as many. So a killed run loses at most about as much as it has gained, and at most 256 MiB per
/// shard: the work gets done however often runs are killed.
inline constexpr uint64_t kFirstRecordBytes = 4ULL << 20;

/// The digest of a file's beginning, whose tensors arrived in file order.
struct FileBegun {
  uint64_t file = 0;  // index of Plan::files
  format::Sha256State hash;
};

/// A file that was checked and renamed to its final name.
struct FileSealed {
  uint64_t file = 0;  // index of Plan::files
  format::Digest sha256;
  std::optional<format::CompressedForm> zstd{};  // set if the file is stored compressed
};

struct JournalState {
  std::map<uint64_t, ShardDone> shards;
  std::map<uint64_t, ShardBegun> begun;  // unfinished shards: last record, with all records' tensors (`first` is 0)
  std::map<uint64_t, FileSealed> files;  // sealed files, by index
  std::vector<FileBegun> file_hashes;    // as recorded, several per file; the bytes they cover may not be durable
};

/// Loaded: the run can resume. Fresh: there is no journal yet. Damaged: a record is broken and valid ones follow.
/// Foreign: it belongs to another plan, program version or state of the source.
struct JournalLoaded {
  JournalState state;
  uint64_t valid_bytes = 0;
};
struct JournalFresh {};
struct JournalDamaged {
  uint64_t offset = 0;
  std::string reason;
};
struct JournalForeign {
  std::string reason;
};
using JournalLoad = std::variant<JournalLoaded, JournalFresh, JournalDamaged, JournalForeign>;

/// `identity` identifies the plan, program and source versions, and the part if any; it is the first record. Its fields
/// kAskedKey, kPlaceKey and kRecipeKey are not compared: the same work can be asked for in several ways.
[[nodiscard]] JournalLoad parse_journal(std::string_view text, const format::Json& identity);

inline constexpr char kAskedKey[] = "asked";    // "org/name@revision", as it was asked for
inline constexpr char kOriginKey[] = "origin";  // for a source on the Hub: {"repository","commit"}
inline constexpr char kPartKey[] = "part";      // "2/4"
inline constexpr char kPlaceKey[] = "place";    // for another source: a folder's absolute path, or an address
inline constexpr char kRecipeKey[] = "recipe";  // as in a recipe file

/// How unfinished work was started, so that it can be resumed in the same way.
struct JournalHead {
  std::optional<format::HubOrigin> origin;  // set for a source on the Hub
  std::string place;                        // place of another source; empty: not recorded
  format::Json recipe;                      // null: not recorded
};
/// nullopt: the text has no readable record.
[[nodiscard]] std::optional<JournalHead> journal_head(std::string_view text);

// The lines that a Journal appends, each with its checksum and line end.
[[nodiscard]] std::string journal_line(const format::Json& identity);
[[nodiscard]] std::string journal_line(const ShardDone& record, std::span<const FileBegun> hashes = {});
[[nodiscard]] std::string journal_line(const ShardBegun& record, std::span<const FileBegun> hashes = {});
[[nodiscard]] std::string journal_line(const std::vector<FileSealed>& record);

class Journal {
 public:
  /// Opens the journal at `path` for appending after `valid_bytes` (0: starts a new one with `identity`).
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(format::FileSystem& files, const format::Path& path,
                                                             const format::Json& identity, uint64_t valid_bytes);
  [[nodiscard]] Result<void> append(const ShardDone& record, std::span<const FileBegun> hashes = {});
  [[nodiscard]] Result<void> append(const ShardBegun& record, std::span<const FileBegun> hashes = {});
  [[nodiscard]] Result<void> append(const std::vector<FileSealed>& record);

 private:
  explicit Journal(std::unique_ptr<format::RecordLog> log) : log_(std::move(log)) {}

  std::unique_ptr<format::RecordLog> log_;
};

/// Whether a journal's records fit a plan. The file is untrusted: a record with a valid checksum may describe what no
/// run has done. Its numbers become indices, offsets and sizes, so each is first compared with the plan.
[[nodiscard]] bool fits_plan(const JournalState& state, const RunScope& scope, const Plan& plan);

}  // namespace dspack::reshard
