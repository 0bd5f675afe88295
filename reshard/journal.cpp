#include "reshard/journal.h"

#include <optional>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::Digest;
using format::Json;

// A record is one line: 16 hex digits of the SHA-256 of its JSON, a space, the JSON. Enough to tell a torn line.
constexpr size_t kCheckDigits = 16;

std::string check_of(std::string_view json) {
  return to_hex(format::sha256(json)).substr(0, kCheckDigits);
}

std::optional<Json> parse_line(std::string_view line) {
  if (line.size() < kCheckDigits + 2 || line[kCheckDigits] != ' ') return std::nullopt;
  const std::string_view text = line.substr(kCheckDigits + 1);
  if (check_of(text) != line.substr(0, kCheckDigits)) return std::nullopt;
  auto json = format::parse_json(text);
  if (!json || !json->is_object()) return std::nullopt;
  return std::move(json).value();
}

Result<Digest> read_digest(const Json& json) {
  const std::optional<Digest> digest = json.is_string() ? format::parse_digest(json.get<std::string>()) : std::nullopt;
  if (!digest) return Error{ErrorKind::corrupt, "a digest is malformed"};
  return *digest;
}

Result<ShardDone> read_shard(const Json& json) {
  ShardDone record;
  TRY_ASSIGN(record.shard, format::json_uint(json, "shard"));
  TRY_ASSIGN(record.sha256, read_digest(json.value("sha256", Json())));
  TRY_ASSIGN(const Json* tensors, format::json_array(json, "tensors"));
  for (const Json& entry : *tensors) {
    if (!entry.is_array() || entry.empty()) return Error{ErrorKind::corrupt, "a tensor's digests are malformed"};
    TensorDigests digests;
    TRY_ASSIGN(digests.whole, read_digest(entry[0]));
    for (size_t i = 1; i < entry.size(); ++i) {
      TRY_ASSIGN(const Digest block, read_digest(entry[i]));
      digests.row_blocks.push_back(block);
    }
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

/// Whether a record lies behind a broken line: then the line is no tail that a loss of power has left.
bool record_follows(std::string_view text) {
  for (size_t newline = text.find('\n'); newline != std::string_view::npos; newline = text.find('\n')) {
    if (parse_line(text.substr(0, newline))) return true;
    text.remove_prefix(newline + 1);
  }
  return false;
}

}  // namespace

JournalLoad parse_journal(std::string_view text, const Json& identity) {
  if (text.empty()) return JournalFresh{};
  JournalLoaded loaded;
  bool first = true;
  while (loaded.valid_bytes < text.size()) {
    const std::string_view rest = text.substr(loaded.valid_bytes);
    const size_t newline = rest.find('\n');
    if (newline == std::string_view::npos) break;  // torn by a kill: what it would have said is not done
    const std::optional<Json> json = parse_line(rest.substr(0, newline));
    if (!json && !record_follows(rest.substr(newline + 1))) break;  // torn by a loss of power
    if (!json) return JournalDamaged{loaded.valid_bytes, "a record's check does not fit"};
    if (first && *json != identity) return JournalForeign{difference(*json, identity)};
    if (!first) {
      if (const auto applied = apply(*json, loaded.state); !applied) {
        return JournalDamaged{loaded.valid_bytes, applied.error().message};
      }
    }
    first = false;
    loaded.valid_bytes += newline + 1;
  }
  if (first) return JournalFresh{};
  return loaded;
}

std::string journal_line(const Json& identity) {
  const std::string text = format::canonical_json(identity);
  return check_of(text) + " " + text + "\n";
}

std::string journal_line(const ShardDone& record) {
  Json tensors = Json::array();
  for (const TensorDigests& digests : record.tensors) {
    Json entry = Json::array({to_hex(digests.whole)});
    for (const Digest& block : digests.row_blocks)
      entry.push_back(to_hex(block));
    tensors.push_back(std::move(entry));
  }
  return journal_line(
      Json{{"shard", record.shard}, {"sha256", to_hex(record.sha256)}, {"tensors", std::move(tensors)}});
}

std::string journal_line(const std::vector<FileSealed>& record) {
  Json files = Json::array();
  for (const FileSealed& sealed : record)
    files.push_back({sealed.file, to_hex(sealed.sha256)});
  return journal_line(Json{{"files", std::move(files)}});
}

Result<std::unique_ptr<Journal>> Journal::open(format::FileSystem& files, const format::Path& path,
                                               const Json& identity, uint64_t valid_bytes) {
  TRY_ASSIGN(auto file, files.open_write(path, format::OpenMode::keep));
  TRY(file->resize(valid_bytes));  // drops a torn tail
  std::unique_ptr<Journal> journal(new Journal(std::move(file), valid_bytes));
  if (valid_bytes == 0) TRY(journal->append_line(journal_line(identity)));
  TRY(files.sync_folder(path.parent_path()));  // also an older one's name: its run may have been killed before this
  return journal;
}

Result<void> Journal::append_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  TRY(file_->write(end_, format::as_bytes(line)));
  TRY(file_->sync());
  end_ += line.size();
  return {};
}

Result<void> Journal::append(const ShardDone& record) {
  return append_line(journal_line(record));
}

Result<void> Journal::append(const std::vector<FileSealed>& record) {
  return append_line(journal_line(record));
}

}  // namespace dspack::reshard
