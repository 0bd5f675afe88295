#include "reshard/journal.h"

#include <optional>

#include <fmt/format.h>

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

/// A list of digests; with what a conversion leaves, an object that holds it.
Result<TensorDigests> read_tensor(const Json& entry) {
  if (!entry.is_object()) return read_digests(entry);
  TRY_ASSIGN(TensorDigests digests, read_digests(entry.value("sha256", Json())));
  if (entry.contains("scales")) {
    TRY_ASSIGN(digests.scales, read_digest(entry["scales"]));
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
  if (!digests.scales && !digests.loss) return list;
  Json entry = {{"sha256", std::move(list)}};
  if (digests.scales) entry["scales"] = to_hex(*digests.scales);
  // Written so that they read back as the same numbers: a resumed run must end with the same manifest.
  if (digests.loss) entry["loss"] = {digests.loss->squared_error, digests.loss->squared_value};
  return entry;
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

Result<void> read_sealed(const Json& json, JournalState& state) {
  TRY_ASSIGN(const Json* files, format::json_array(json, "files"));
  for (const Json& entry : *files) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned())
      return Error{ErrorKind::corrupt, "a sealed file's record is malformed"};
    TRY_ASSIGN(state.files[entry[0].get<uint64_t>()], read_digest(entry[1]));
  }
  return {};
}

Result<void> apply(const Json& json, JournalState& state) {
  if (json.contains("shard")) {
    TRY_ASSIGN(ShardDone record, read_shard(json));
    const uint64_t shard = record.shard;
    state.shards[shard] = std::move(record);
    return {};
  }
  if (json.contains("files")) return read_sealed(json, state);
  return Error{ErrorKind::corrupt, "a record of an unknown kind"};
}

/// Which part of the identity differs, in words.
std::string difference(const Json& recorded, const Json& now) {
  const auto field = [](const Json& identity, std::string_view key) {
    return format::json_string(identity, key).has_value() ? *format::json_string(identity, key) : std::string("?");
  };
  if (field(recorded, "program") != field(now, "program")) {
    return fmt::format("it was begun by version {}", field(recorded, "program"));
  }
  if (field(recorded, "plan") != field(now, "plan")) return "it was begun with another recipe or from another source";
  return "the source has changed since it was begun";
}

}  // namespace

JournalLoad parse_journal(std::string_view text, const Json& identity) {
  JournalLoaded loaded;
  bool first = true;
  std::optional<JournalForeign> foreign;
  const auto take = [&](const Json& record) -> Result<void> {
    if (first && record != identity) {
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

std::string journal_line(const Json& identity) {
  return format::record_line(identity);
}

std::string journal_line(const ShardDone& record) {
  Json tensors = Json::array();
  for (const TensorDigests& digests : record.tensors)
    tensors.push_back(tensor_json(digests));
  Json json{{"shard", record.shard}, {"tensors", std::move(tensors)}};
  if (record.sha256) json["sha256"] = to_hex(*record.sha256);
  return journal_line(json);
}

std::string journal_line(const std::vector<FileSealed>& record) {
  Json files = Json::array();
  for (const FileSealed& sealed : record)
    files.push_back({sealed.file, to_hex(sealed.sha256)});
  return journal_line(Json{{"files", std::move(files)}});
}

Result<std::unique_ptr<Journal>> Journal::open(format::FileSystem& files, const format::Path& path,
                                               const Json& identity, uint64_t valid_bytes) {
  TRY_ASSIGN(auto log, format::RecordLog::open(files, path, valid_bytes));
  std::unique_ptr<Journal> journal(new Journal(std::move(log)));
  if (valid_bytes == 0) TRY(journal->log_->append(journal_line(identity)));
  return journal;
}

Result<void> Journal::append(const ShardDone& record) {
  return log_->append(journal_line(record));
}

Result<void> Journal::append(const std::vector<FileSealed>& record) {
  return log_->append(journal_line(record));
}

}  // namespace dspack::reshard
