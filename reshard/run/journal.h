// The journal of one reshard run: what is durably done. Append-only; every record is written after the bytes it
// describes are durable, and is durable itself when the call returns. docs/format.md specifies it.
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

/// What streaming a tensor yields.
struct TensorDigests {
  format::Digest whole;                    // of what is written; of one that is written nowhere, of what was read
  std::vector<format::Digest> row_blocks;  // empty unless rows_per_block says otherwise
  std::vector<format::Digest> needed{};    // of the tensors that a conversion was given, in the order of Copy::needs
  std::optional<kernels::Loss> loss{};     // of a conversion that rounds
};

/// A source shard of which all was read that the plan wants, all its bytes durable in partial files.
struct ShardDone {
  uint64_t shard = 0;                    // index of the catalogue's files
  std::optional<format::Digest> sha256;  // if it was read whole
  std::vector<TensorDigests> tensors;    // in the order of Plan::shards[shard]
};

using TensorBegun = format::TensorSumsBegun;

/// A source shard of which the beginning was read, all its bytes durable in partial files. `at` 0: what earlier records
/// have of it does not count.
struct ShardBegun {
  uint64_t shard = 0;                         // index of the catalogue's files
  uint64_t at = 0;                            // offset in the shard of the next byte
  std::optional<format::Sha256State> hash{};  // of the bytes before, if it is read whole
  uint64_t first = 0;                         // how many copies of the shard earlier records have
  std::vector<TensorDigests> tensors{};       // of those that are whole, from `first` on
  std::vector<TensorBegun> begun{};           // of all copies of the tensor under way; empty: none is
};

/// How far a shard has come is recorded after so many bytes for the first time in a run, then after twice as many as
/// before, up to 64 times as many. So a run that is killed loses at most about as much as it has gained: whatever the
/// rhythm of kills, the work gets done. And at most 256 MiB a shard.
inline constexpr uint64_t kFirstRecordBytes = 4ULL << 20;

/// The digest of a file's beginning, whose tensors came in the file's order.
struct FileBegun {
  uint64_t file = 0;  // index of Plan::files
  format::Sha256State hash;
};

/// A file that was checked and renamed to its final name.
struct FileSealed {
  uint64_t file = 0;  // index of Plan::files
  format::Digest sha256;
  std::optional<format::CompressedForm> zstd{};  // how it is stored, if that is compressed
};

struct JournalState {
  std::map<uint64_t, ShardDone> shards;
  std::map<uint64_t, ShardBegun> begun;  // of those that are not done, the last record with all tensors: `first` is 0
  std::map<uint64_t, FileSealed> files;  // sealed, by number
  std::vector<FileBegun> file_hashes;    // as recorded, several of a file; what they cover may not be durable
};

/// Loaded: the run can go on. Fresh: there is no journal yet. Damaged: a record is broken and good ones follow.
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

/// `identity` tells plan, program and source versions, and of a part which; it is the first record. Its fields
/// kAskedKey, kPlaceKey and kRecipeKey are not compared: the same may be asked for in several ways.
[[nodiscard]] JournalLoad parse_journal(std::string_view text, const format::Json& identity);

inline constexpr char kAskedKey[] = "asked";    // "org/name@revision", as it was asked for
inline constexpr char kOriginKey[] = "origin";  // of a source on the Hub: {"repository","commit"}
inline constexpr char kPartKey[] = "part";      // "2/4"
inline constexpr char kPlaceKey[] = "place";    // of another source: a folder's absolute path, an address
inline constexpr char kRecipeKey[] = "recipe";  // as in a recipe file

/// How unfinished work was begun, so that whoever goes on with it can do the same.
struct JournalHead {
  std::optional<format::HubOrigin> origin;  // of a source on the Hub
  std::string place;                        // of another one; empty: not recorded
  format::Json recipe;                      // null: not recorded
};
/// nullopt: no journal that could be read.
[[nodiscard]] std::optional<JournalHead> journal_head(std::string_view text);

// The lines that a Journal appends, each with its check and its end of line.
[[nodiscard]] std::string journal_line(const format::Json& identity);
[[nodiscard]] std::string journal_line(const ShardDone& record, std::span<const FileBegun> hashes = {});
[[nodiscard]] std::string journal_line(const ShardBegun& record, std::span<const FileBegun> hashes = {});
[[nodiscard]] std::string journal_line(const std::vector<FileSealed>& record);

class Journal {
 public:
  /// Opens the journal at `path` for appending behind `valid_bytes` (0: starts a new one with `identity`).
  [[nodiscard]] static Result<std::unique_ptr<Journal>> open(format::FileSystem& files, const format::Path& path,
                                                             const format::Json& identity, uint64_t valid_bytes);
  [[nodiscard]] Result<void> append(const ShardDone& record, std::span<const FileBegun> hashes = {});
  [[nodiscard]] Result<void> append(const ShardBegun& record, std::span<const FileBegun> hashes = {});
  [[nodiscard]] Result<void> append(const std::vector<FileSealed>& record);

 private:
  explicit Journal(std::unique_ptr<format::RecordLog> log) : log_(std::move(log)) {}

  std::unique_ptr<format::RecordLog> log_;
};

/// Whether a journal's records belong to a plan. A journal is a file that may lie: its records have the right check and
/// say what no run has done. Its numbers become indices, offsets and sizes, so each is compared with the plan first.
[[nodiscard]] bool fits_plan(const JournalState& state, const RunScope& scope, const Plan& plan);

}  // namespace dspack::reshard
