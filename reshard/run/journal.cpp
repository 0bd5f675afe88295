#include "reshard/run/journal.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "format/hub/name.h"
#include "reshard/plan/plan.h"
#include "reshard/run/part.h"

namespace dspack::reshard {
namespace {

using format::Digest;
using format::Json;

Result<Digest> read_digest(const Json& json) {
  const std::optional<Digest> digest = json.is_string() ? format::parse_digest(json.get<std::string>()) : std::nullopt;
  if (!digest) return Error{ErrorKind::corrupt, "a digest is malformed"};
  return *digest;
}

Result<TensorDigests> read_digests(const Json& list) {
  if (!list.is_array() || list.empty()) return Error{ErrorKind::corrupt, "a tensor's digests are malformed"};
  TensorDigests digests;
  TRY_ASSIGN(digests.whole, read_digest(list[0]));
  for (size_t i = 1; i < list.size(); ++i) {
    TRY_ASSIGN(const Digest block, read_digest(list[i]));
    digests.row_blocks.push_back(block);
  }
  return digests;
}

/// A list of digests, or an object with that list and the results of a conversion.
Result<TensorDigests> read_tensor(const Json& entry) {
  if (!entry.is_object()) return read_digests(entry);
  TRY_ASSIGN(TensorDigests digests, read_digests(entry.value("sha256", Json())));
  if (entry.contains("needed")) {
    TRY_ASSIGN(const Json* needed, format::json_array(entry, "needed"));
    for (const Json& digest : *needed) {
      TRY_ASSIGN(const Digest one, read_digest(digest));
      digests.needed.push_back(one);
    }
  }
  if (entry.contains("loss")) {
    const Json& loss = entry["loss"];
    if (!loss.is_array() || loss.size() != 2 || !loss[0].is_number() || !loss[1].is_number())
      return Error{ErrorKind::corrupt, "a tensor's loss is malformed"};
    digests.loss = kernels::Loss{loss[0].get<double>(), loss[1].get<double>()};
  }
  return digests;
}

Json tensor_json(const TensorDigests& digests) {
  Json list = Json::array({to_hex(digests.whole)});
  for (const Digest& block : digests.row_blocks)
    list.push_back(to_hex(block));
  if (digests.needed.empty() && !digests.loss) return list;
  Json entry = {{"sha256", std::move(list)}};
  for (const Digest& needed : digests.needed)
    entry["needed"].push_back(to_hex(needed));
  // Written so that they read back as the same numbers: a resumed run must produce the same manifest.
  if (digests.loss) entry["loss"] = {digests.loss->squared_error, digests.loss->squared_value};
  return entry;
}

Json tensors_json(const std::vector<TensorDigests>& tensors) {
  Json list = Json::array();
  for (const TensorDigests& digests : tensors)
    list.push_back(tensor_json(digests));
  return list;
}

Result<ShardDone> read_shard(const Json& json) {
  ShardDone record;
  TRY_ASSIGN(record.shard, format::json_uint(json, "shard"));
  if (json.contains("sha256")) {
    TRY_ASSIGN(record.sha256, read_digest(json["sha256"]));
  }
  TRY_ASSIGN(const Json* tensors, format::json_array(json, "tensors"));
  for (const Json& entry : *tensors) {
    TRY_ASSIGN(TensorDigests digests, read_tensor(entry));
    record.tensors.push_back(std::move(digests));
  }
  return record;
}

Result<format::Sha256State> read_state(const Json& json) {
  auto state = json.is_string() ? format::parse_sha256_state(json.get<std::string>()) : std::nullopt;
  if (!state) return Error{ErrorKind::corrupt, "the state of a digest is malformed"};
  return *std::move(state);
}

Result<TensorBegun> read_tensor_begun(const Json& list) {
  if (!list.is_array() || list.size() < 2) return Error{ErrorKind::corrupt, "a tensor's record is malformed"};
  TensorBegun tensor;
  TRY_ASSIGN(tensor.whole, read_state(list[0]));
  if (!list[1].is_null()) {
    TRY_ASSIGN(tensor.row_block, read_state(list[1]));
  }
  for (size_t i = 2; i < list.size(); ++i) {
    TRY_ASSIGN(const Digest block, read_digest(list[i]));
    tensor.row_blocks.push_back(block);
  }
  return tensor;
}

Json tensor_begun_json(const TensorBegun& tensor) {
  Json list = Json::array({to_text(tensor.whole), nullptr});
  if (tensor.row_block) list[1] = to_text(*tensor.row_block);
  for (const Digest& block : tensor.row_blocks)
    list.push_back(to_hex(block));
  return list;
}

/// Merges the record with the shard's earlier ones.
Result<void> read_begun(const Json& json, JournalState& state) {
  ShardBegun record;
  TRY_ASSIGN(record.shard, format::json_uint(json, "begun"));
  TRY_ASSIGN(record.at, format::json_uint(json, "at"));
  TRY_ASSIGN(const uint64_t first, format::json_uint(json, "first"));
  if (json.contains("hash")) {
    TRY_ASSIGN(record.hash, read_state(json["hash"]));
  }
  if (state.shards.contains(record.shard)) return Error{ErrorKind::corrupt, "a shard is begun that is done"};
  if (record.at == 0) {  // forget the shard, and every digest that may cover its bytes
    state.begun.erase(record.shard);
    state.file_hashes.clear();
    return {};
  }
  const auto before = state.begun.find(record.shard);
  if (before != state.begun.end()) record.tensors = std::move(before->second.tensors);
  if (record.tensors.size() != first) return Error{ErrorKind::corrupt, "a record does not follow those of its shard"};
  TRY_ASSIGN(const Json* tensors, format::json_array(json, "tensors"));
  for (const Json& entry : *tensors) {
    TRY_ASSIGN(TensorDigests digests, read_tensor(entry));
    record.tensors.push_back(std::move(digests));
  }
  TRY_ASSIGN(const Json* begun, format::json_array(json, "open"));
  for (const Json& entry : *begun) {
    TRY_ASSIGN(TensorBegun tensor, read_tensor_begun(entry));
    record.begun.push_back(std::move(tensor));
  }
  state.begun[record.shard] = std::move(record);
  return {};
}

Result<void> read_hashes(const Json& json, JournalState& state) {
  if (!json.contains("hashes")) return {};
  TRY_ASSIGN(const Json* hashes, format::json_array(json, "hashes"));
  for (const Json& entry : *hashes) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned())
      return Error{ErrorKind::corrupt, "the record of a file's digest is malformed"};
    FileBegun file{.file = entry[0].get<uint64_t>(), .hash = {}};
    TRY_ASSIGN(file.hash, read_state(entry[1]));
    state.file_hashes.push_back(std::move(file));
  }
  return {};
}

void add_hashes(Json& json, std::span<const FileBegun> hashes) {
  for (const FileBegun& file : hashes)
    json["hashes"].push_back({file.file, to_text(file.hash)});
}

Result<format::CompressedForm> read_compressed(const Json& json) {
  if (!json.is_object()) return Error{ErrorKind::corrupt, "a compressed file's record is malformed"};
  format::CompressedForm form;
  TRY_ASSIGN(form.size_bytes, format::json_uint(json, "size"));
  TRY_ASSIGN(form.sha256, read_digest(json.value("sha256", Json())));
  TRY_ASSIGN(const Json* frames, format::json_array(json, "frames"));
  for (const Json& bytes : *frames) {
    if (!bytes.is_number_unsigned() || bytes.get<uint64_t>() > UINT32_MAX)
      return Error{ErrorKind::corrupt, "a compressed file's frames are malformed"};
    form.frames.push_back(bytes.get<uint32_t>());
  }
  return form;
}

Result<void> read_sealed(const Json& json, JournalState& state) {
  TRY_ASSIGN(const Json* files, format::json_array(json, "files"));
  for (const Json& entry : *files) {
    if (!entry.is_array() || entry.size() < 2 || entry.size() > 3 || !entry[0].is_number_unsigned())
      return Error{ErrorKind::corrupt, "a sealed file's record is malformed"};
    FileSealed sealed{.file = entry[0].get<uint64_t>(), .sha256 = {}};
    TRY_ASSIGN(sealed.sha256, read_digest(entry[1]));
    if (entry.size() == 3) {
      TRY_ASSIGN(sealed.zstd, read_compressed(entry[2]));
    }
    state.files[sealed.file] = std::move(sealed);
  }
  return {};
}

Result<void> apply(const Json& json, JournalState& state) {
  if (json.contains("shard")) {
    TRY_ASSIGN(ShardDone record, read_shard(json));
    const uint64_t shard = record.shard;
    state.begun.erase(shard);
    state.shards[shard] = std::move(record);
    return read_hashes(json, state);
  }
  if (json.contains("begun")) {
    TRY(read_begun(json, state));
    return read_hashes(json, state);
  }
  if (json.contains("files")) return read_sealed(json, state);
  return Error{ErrorKind::corrupt, "a record of an unknown kind"};
}

/// The fields of an identity that must be equal.
Json compared(Json identity) {
  for (const char* key : {kAskedKey, kPlaceKey, kRecipeKey})
    identity.erase(key);
  return identity;
}

std::optional<format::HubOrigin> read_origin(const Json& identity) {
  const auto asked = format::json_string(identity, kAskedKey);
  const auto origin = format::json_object(identity, kOriginKey);
  if (!asked || !origin) return std::nullopt;
  const auto repository = format::json_string(**origin, "repository");
  const auto commit = format::json_string(**origin, "commit");
  const auto name = repository ? format::parse_hub_name(*repository) : std::nullopt;
  if (!name || name->repository != *repository || !commit || !format::is_commit_id(*commit)) return std::nullopt;
  return format::HubOrigin{*repository, *commit, *asked};
}

std::string origin_text(const Json& identity) {
  const auto origin = read_origin(identity);
  return origin ? fmt::format("{} at commit {}", origin->repository, origin->commit) : "a folder";
}

/// The first difference between the identities, in words.
std::string difference(const Json& recorded, const Json& now) {
  const auto field = [](const Json& identity, std::string_view key) {
    return format::json_string(identity, key).has_value() ? *format::json_string(identity, key) : std::string("?");
  };
  if (field(recorded, "program") != field(now, "program")) {
    return fmt::format("it was begun by version {}", field(recorded, "program"));
  }
  if (recorded.value("journal", Json()) != now.value("journal", Json()))
    return "it was begun by a version that kept another journal";
  if (field(recorded, "plan") != field(now, "plan")) return "it was begun with another recipe or from another source";
  if (field(recorded, kPartKey) != field(now, kPartKey)) return "it is of another part";
  if (recorded.value(kOriginKey, Json()) != now.value(kOriginKey, Json()))
    return fmt::format("it was begun from {}", origin_text(recorded));
  return "the source has changed since it was begun";
}

}  // namespace

JournalLoad parse_journal(std::string_view text, const Json& identity) {
  JournalLoaded loaded;
  bool first = true;
  std::optional<JournalForeign> foreign;
  const auto take = [&](const Json& record) -> Result<void> {
    if (first && compared(record) != compared(identity)) {
      foreign = JournalForeign{difference(record, identity)};
      return Error{ErrorKind::conflict, foreign->reason};
    }
    if (!first) TRY(apply(record, loaded.state));
    first = false;
    return {};
  };
  const format::RecordScan scan = format::scan_records(text, take);
  if (foreign) return *foreign;
  if (scan.damage) return JournalDamaged{scan.valid_bytes, *scan.damage};
  if (first) return JournalFresh{};
  loaded.valid_bytes = scan.valid_bytes;
  return loaded;
}

std::optional<JournalHead> journal_head(std::string_view text) {
  std::optional<JournalHead> head;
  const auto take = [&](const Json& record) -> Result<void> {
    if (head) return {};
    const auto place = format::json_string(record, kPlaceKey);
    head = JournalHead{read_origin(record), place ? *place : "", record.value(kRecipeKey, Json())};
    return {};
  };
  (void)format::scan_records(text, take);
  return head;
}

std::string journal_line(const Json& identity) {
  return format::record_line(identity);
}

std::string journal_line(const ShardDone& record, std::span<const FileBegun> hashes) {
  Json json{{"shard", record.shard}, {"tensors", tensors_json(record.tensors)}};
  if (record.sha256) json["sha256"] = to_hex(*record.sha256);
  add_hashes(json, hashes);
  return journal_line(json);
}

std::string journal_line(const ShardBegun& record, std::span<const FileBegun> hashes) {
  Json begun = Json::array();
  for (const TensorBegun& tensor : record.begun)
    begun.push_back(tensor_begun_json(tensor));
  Json json{{"begun", record.shard},
            {"at", record.at},
            {"first", record.first},
            {"tensors", tensors_json(record.tensors)},
            {"open", std::move(begun)}};
  if (record.hash) json["hash"] = to_text(*record.hash);
  add_hashes(json, hashes);
  return journal_line(json);
}

std::string journal_line(const std::vector<FileSealed>& record) {
  Json files = Json::array();
  for (const FileSealed& sealed : record) {
    Json entry = Json::array({sealed.file, to_hex(sealed.sha256)});
    if (sealed.zstd) {
      entry.push_back({{"size", sealed.zstd->size_bytes},
                       {"sha256", to_hex(sealed.zstd->sha256)},
                       {"frames", sealed.zstd->frames}});
    }
    files.push_back(std::move(entry));
  }
  return journal_line(Json{{"files", std::move(files)}});
}

Result<std::unique_ptr<Journal>> Journal::open(format::FileSystem& files, const format::Path& path,
                                               const Json& identity, uint64_t valid_bytes) {
  TRY_ASSIGN(auto log, format::RecordLog::open(files, path, valid_bytes));
  std::unique_ptr<Journal> journal(new Journal(std::move(log)));
  if (valid_bytes == 0) TRY(journal->log_->append(journal_line(identity)));
  return journal;
}

Result<void> Journal::append(const ShardDone& record, std::span<const FileBegun> hashes) {
  return log_->append(journal_line(record, hashes));
}

Result<void> Journal::append(const ShardBegun& record, std::span<const FileBegun> hashes) {
  return log_->append(journal_line(record, hashes));
}

Result<void> Journal::append(const std::vector<FileSealed>& record) {
  return log_->append(journal_line(record));
}
namespace {

/// Size of the row blocks in which a copy is digested; 0: it has no block digests.
uint64_t block_bytes_of(const Copy& copy, const Plan& plan) {
  if (copy.file == kNoFile || copy.conversion != Conversion::none) return 0;
  return format::row_block_bytes(plan.result.tensors()[plan.files[copy.file].tensors[copy.slot]]);
}

bool fits_whole(const TensorDigests& tensor, const Copy& copy, const Plan& plan) {
  const uint64_t block = block_bytes_of(copy, plan);
  return tensor.row_blocks.size() == (block == 0 ? 0 : (copy.bytes + block - 1) / block);
}

bool fits_copies(const std::vector<TensorDigests>& tensors, const std::vector<Copy>& copies, const Plan& plan) {
  if (tensors.size() > copies.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!fits_whole(tensors[i], copies[i], plan)) return false;
  }
  return true;
}

/// Whether the record fits a copy of whose tensor `done` bytes were read.
bool fits_open(const TensorBegun& tensor, const Copy& copy, uint64_t done, const Plan& plan) {
  const uint64_t block = block_bytes_of(copy, plan);
  if (copy.conversion != Conversion::none || tensor.whole.bytes != done) return false;
  if (block == 0) return tensor.row_blocks.empty() && !tensor.row_block;
  return tensor.row_blocks.size() == done / block && tensor.row_block && tensor.row_block->bytes == done % block;
}

/// Checks that the tensors under way are all copies of the next tensor, and `at` lies within it; or if there are none,
/// that `at` lies between two tensors.
bool fits_shard(const ShardBegun& record, const Plan& plan) {
  const std::vector<Copy>& copies = plan.shards[record.shard];
  const ShardRead& read = plan.reads[record.shard];
  if (read.ranges.empty() || record.at < read.ranges.front().begin) return false;
  if (record.hash.has_value() != read.whole || (read.whole && record.hash->bytes != record.at)) return false;
  if (!fits_copies(record.tensors, copies, plan)) return false;
  const auto next = copies.begin() + static_cast<std::ptrdiff_t>(record.tensors.size());
  const bool is_first_of_tensor = next == copies.begin() || next == copies.end() || next->tensor != next[-1].tensor;
  if (!is_first_of_tensor || (next != copies.begin() && record.at < next[-1].source.end)) return false;
  if (next == copies.end()) return record.begun.empty() && record.at <= read.ranges.back().end;
  if (record.begun.empty()) return record.at <= next->source.begin;
  const auto end = std::find_if(next, copies.end(), [&](const Copy& copy) { return copy.tensor != next->tensor; });
  if (end - next != std::ssize(record.begun)) return false;
  if (record.at < next->source.begin || next->source.end <= record.at) return false;
  for (size_t i = 0; i < record.begun.size(); ++i) {
    if (!fits_open(record.begun[i], next[static_cast<std::ptrdiff_t>(i)], record.at - next->source.begin, plan))
      return false;
  }
  return true;
}

}  // namespace

bool fits_plan(const JournalState& state, const RunScope& scope, const Plan& plan) {
  const auto is_own = [&](uint64_t shard) { return std::ranges::binary_search(scope.shards, shard); };
  for (const auto& [shard, record] : state.shards) {
    if (!is_own(shard) || record.tensors.size() != plan.shards[shard].size()) return false;
    if (!fits_copies(record.tensors, plan.shards[shard], plan)) return false;
  }
  for (const auto& [shard, record] : state.begun) {
    if (!is_own(shard) || state.shards.contains(shard) || !fits_shard(record, plan)) return false;
  }
  const auto is_planned = [&](uint64_t file) { return file < plan.files.size(); };
  return std::ranges::all_of(state.files, [&](const auto& file) { return is_planned(file.first); }) &&
         std::ranges::all_of(state.file_hashes, [&](const FileBegun& file) { return is_planned(file.file); });
}

}  // namespace dspack::reshard
