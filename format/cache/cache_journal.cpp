#include "format/cache/cache_journal.h"

#include "format/file_system.h"
#include "format/json.h"
#include "format/record_log.h"

namespace dspack::format {
namespace {

constexpr uint64_t kVersion = 1;

constexpr char kCache[] = "cache";
constexpr char kOrigin[] = "origin";
constexpr char kText[] = "text";
constexpr char kAbsent[] = "absent";
constexpr char kHeader[] = "header";
constexpr char kFile[] = "file";
constexpr char kPart[] = "part";
constexpr char kRemoved[] = "removed";
constexpr char kUsed[] = "used";

constexpr char kManifestGround[] = "manifest";
constexpr char kFetchGround[] = "first fetch";

Error malformed(const std::string& what) {
  return {ErrorKind::corrupt, what + " is malformed"};
}

Result<Digest> read_digest(const Json& json) {
  const std::optional<Digest> digest = json.is_string() ? parse_digest(json.get<std::string>()) : std::nullopt;
  if (!digest) return malformed("a digest");
  return *digest;
}

Result<void> check_path(std::string_view path) {
  if (const auto reason = unsafe_path_reason(path)) return Error{ErrorKind::corrupt, *reason};
  return {};
}

Result<std::string> read_path(const Json& record, const char* key) {
  TRY_ASSIGN(std::string path, json_string(record, key));
  TRY(check_path(path));
  return path;
}

Result<KeptText> read_text_fields(const Json& record) {
  KeptText text;
  TRY_ASSIGN(text.size_bytes, json_uint(record, "size"));
  TRY_ASSIGN(text.sha256, read_digest(record.value("sha256", Json())));
  return text;
}

Result<KeptHeader> read_header(const Json& record) {
  KeptHeader header;
  TRY_ASSIGN(header.text, read_text_fields(record));
  TRY_ASSIGN(header.file_bytes, json_uint(record, "file_size"));
  TRY_ASSIGN(header.version, json_string(record, "version"));
  if (header.text.size_bytes > header.file_bytes) return malformed("a header's record");
  return header;
}

Result<KeptFile> read_file(const Json& record) {
  KeptFile file;
  TRY_ASSIGN(file.sha256, read_digest(record.value("sha256", Json())));
  TRY_ASSIGN(const std::string ground, json_string(record, "ground"));
  if (ground == kManifestGround) return file;
  if (ground != kFetchGround) return malformed("a file's record");
  TRY_ASSIGN(const Json* tensors, json_array(record, "tensors"));
  for (const Json& entry : *tensors) {
    TRY_ASSIGN(const Digest digest, read_digest(entry));
    file.tensors.push_back(digest);
  }
  return file;
}

/// [[number, digest], ...]
Result<void> read_numbered(const Json& array, std::map<uint64_t, Digest>& into) {
  if (!array.is_array()) return malformed("a list of digests");
  for (const Json& entry : array) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned()) return malformed("a part's record");
    TRY_ASSIGN(into[entry[0].get<uint64_t>()], read_digest(entry[1]));
  }
  return {};
}

Result<void> apply_parts(const Json& record, KeptParts& parts) {
  if (record.contains("tensor")) {
    TRY_ASSIGN(const uint64_t tensor, json_uint(record, "tensor"));
    return read_numbered(record.value("row_blocks", Json()), parts.row_blocks[tensor]);
  }
  return read_numbered(record.value("tensors", Json()), parts.tensors);
}

Result<void> apply_removal(const Json& record, CacheState& state) {
  TRY_ASSIGN(const std::string path, read_path(record, kRemoved));
  if (!record.contains("tensors")) {
    const auto file = state.files.find(path);
    if (file != state.files.end() && !file->second.tensors.empty())
      state.forgotten[path] = std::move(file->second.tensors);
    if (file != state.files.end()) state.files.erase(file);
    state.parts.erase(path);
    return {};
  }
  TRY_ASSIGN(const Json* tensors, json_array(record, "tensors"));
  const auto parts = state.parts.find(path);
  for (const Json& tensor : *tensors) {
    if (!tensor.is_number_unsigned()) return malformed("a removal");
    if (parts == state.parts.end()) continue;
    parts->second.tensors.erase(tensor.get<uint64_t>());
    parts->second.row_blocks.erase(tensor.get<uint64_t>());
  }
  return {};
}

Result<void> apply_use(const Json& record, CacheState& state) {
  TRY_ASSIGN(const Json* paths, json_array(record, kUsed));
  for (const Json& path : *paths) {
    if (!path.is_string()) return malformed("a record of use");
    TRY(check_path(path.get_ref<const std::string&>()));
    state.used.push_back(path.get<std::string>());
  }
  return {};
}

Result<void> apply(const Json& record, CacheState& state) {
  if (record.contains(kText)) {
    TRY_ASSIGN(const std::string path, read_path(record, kText));
    TRY_ASSIGN(state.texts[path], read_text_fields(record));
    return {};
  }
  if (record.contains(kAbsent)) {
    TRY_ASSIGN(std::string path, read_path(record, kAbsent));
    state.absent.insert(std::move(path));
    return {};
  }
  if (record.contains(kHeader)) {
    TRY_ASSIGN(const std::string path, read_path(record, kHeader));
    TRY_ASSIGN(state.headers[path], read_header(record));
    return {};
  }
  if (record.contains(kFile)) {
    TRY_ASSIGN(const std::string path, read_path(record, kFile));
    TRY_ASSIGN(state.files[path], read_file(record));
    state.used.push_back(path);
    return {};
  }
  if (record.contains(kPart)) {
    TRY_ASSIGN(const std::string path, read_path(record, kPart));
    return apply_parts(record, state.parts[path]);
  }
  if (record.contains(kRemoved)) return apply_removal(record, state);
  if (record.contains(kUsed)) return apply_use(record, state);
  return malformed("a record of an unknown kind");
}

Result<std::string> read_origin(const Json& record) {
  TRY_ASSIGN(const uint64_t version, json_uint(record, kCache));
  if (version != kVersion) return Error{ErrorKind::unsupported, "is of another version of the program"};
  return json_string(record, kOrigin);
}

Json numbered(const std::map<uint64_t, Digest>& digests) {
  Json array = Json::array();
  for (const auto& [number, digest] : digests)
    array.push_back({number, to_hex(digest)});
  return array;
}

}  // namespace

CacheLoad parse_cache_journal(std::string_view text, std::string_view origin) {
  CacheLoaded loaded;
  bool first = true;
  std::optional<CacheForeign> foreign;
  const auto take = [&](const Json& record) -> Result<void> {
    if (!first) return apply(record, loaded.state);
    TRY_ASSIGN(const std::string recorded, read_origin(record));
    if (!origin.empty() && recorded != origin) {
      foreign = CacheForeign{recorded};
      return Error{ErrorKind::conflict, recorded};
    }
    first = false;
    return {};
  };
  const RecordScan scan = scan_records(text, take);
  if (foreign) return *foreign;
  if (scan.damage) return CacheDamaged{scan.valid_bytes, *scan.damage};
  loaded.valid_bytes = scan.valid_bytes;
  return loaded;
}

std::optional<std::string> cache_origin(std::string_view text) {
  std::optional<std::string> origin;
  (void)scan_records(text.substr(0, text.find('\n') + 1), [&](const Json& record) -> Result<void> {
    TRY_ASSIGN(origin, read_origin(record));
    return {};
  });
  return origin;
}

std::string cache_line_origin(std::string_view origin) {
  return record_line({{kCache, kVersion}, {kOrigin, origin}});
}

std::string cache_line(std::string_view path, const KeptText& text) {
  return record_line({{kText, path}, {"size", text.size_bytes}, {"sha256", to_hex(text.sha256)}});
}

std::string cache_line_absent(std::string_view path) {
  return record_line({{kAbsent, path}});
}

std::string cache_line(std::string_view path, const KeptHeader& header) {
  return record_line({{kHeader, path},
                      {"size", header.text.size_bytes},
                      {"sha256", to_hex(header.text.sha256)},
                      {"file_size", header.file_bytes},
                      {"version", header.version}});
}

std::string cache_line(std::string_view path, const KeptFile& file) {
  Json record = {{kFile, path}, {"sha256", to_hex(file.sha256)}, {"ground", kManifestGround}};
  if (!file.tensors.empty()) {
    record["ground"] = kFetchGround;
    record["tensors"] = Json::array();
    for (const Digest& digest : file.tensors)
      record["tensors"].push_back(to_hex(digest));
  }
  return record_line(record);
}

std::string cache_line(std::string_view path, const KeptParts& parts) {
  std::string lines;
  if (!parts.tensors.empty()) lines += record_line({{kPart, path}, {"tensors", numbered(parts.tensors)}});
  for (const auto& [tensor, blocks] : parts.row_blocks)
    lines += record_line({{kPart, path}, {"tensor", tensor}, {"row_blocks", numbered(blocks)}});
  return lines;
}

std::string cache_line_removed(std::string_view path) {
  return record_line({{kRemoved, path}});
}

std::string cache_line_removed(std::string_view path, const std::vector<uint64_t>& tensors) {
  return record_line({{kRemoved, path}, {"tensors", tensors}});
}

std::string cache_line_used(const std::vector<std::string>& paths) {
  return record_line({{kUsed, paths}});
}

}  // namespace dspack::format
