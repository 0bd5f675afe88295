#include "runtime/generate/kv_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "format/base/foreign_text.h"
#include "format/base/page_buffer.h"
#include "format/base/size.h"
#include "format/safetensors.h"

namespace dspack::runtime {

namespace {

constexpr char kVersionKey[] = "dspack_kv";
constexpr char kKvVersion[] = "1";
constexpr char kGoesOnKey[] = "goes_on";
constexpr char kPrecisionKey[] = "precision";
constexpr char kTokensName[] = "tokens";
constexpr char kTextName[] = "text";

using Metadata = std::map<std::string, std::string>;

/// The tensors that a file's header must list, in this order.
std::vector<format::TensorInfo> kv_tensors(const KvShape& shape, const KvHeader& header) {
  const uint64_t positions = header.positions;
  const uint64_t text_bytes = header.text_bytes;
  std::vector<format::TensorInfo> tensors;
  uint64_t end = 0;
  const auto add = [&](std::string name, Dtype dtype, std::vector<uint64_t> sizes, uint64_t bytes) {
    tensors.push_back({std::move(name), dtype, std::move(sizes), {end, end + bytes}});
    end += bytes;
  };
  add(kTokensName, Dtype::u32, {positions}, positions * sizeof(uint32_t));
  for (const CachePlane& plane : shape.planes) {
    const uint64_t layers = plane.layers_of(shape.layers);
    const uint64_t rows = plane.block_rows(header.extent());
    if (rows == 0) continue;  // the order of tensors without bytes is not defined by a header
    add(fmt::format("kv.{}", plane.name), Dtype::u8, {layers, rows, plane.row_bytes}, layers * rows * plane.row_bytes);
  }
  if (text_bytes > 0) add(kTextName, Dtype::u8, {text_bytes}, text_bytes);
  return tensors;
}

Result<std::string> field_of(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return invalid(fmt::format("__metadata__ lacks \"{}\"", key));
  return found->second;
}

Result<format::Digest> find_digest(const Metadata& metadata, const std::string& key) {
  TRY_ASSIGN(const std::string text, field_of(metadata, key));
  const auto digest = format::parse_digest(text);
  if (!digest) return invalid(fmt::format("\"{}\" is no SHA-256: {}", key, quote(text)));
  return *digest;
}

Error does_not_fit() {
  return invalid("its tensors are not those of a saved KV cache of this model");
}

/// Length of the one-dimensional tensor `name`; 0: there is none. Its type is compared later, with all tensors.
uint64_t length_of(const format::SafetensorsHeader& header, std::string_view name) {
  for (const format::TensorInfo& tensor : header.tensors)
    if (tensor.name == name && tensor.shape.size() == 1) return tensor.shape[0];
  return 0;
}

bool is_same_tensor(const format::TensorInfo& a, const format::TensorInfo& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.data == b.data;
}

std::span<const std::byte> bytes_of_tokens(const std::vector<uint32_t>& tokens) {
  return std::as_bytes(std::span(tokens));
}

format::Digest digest_of(const KvBlock& block, std::string_view text) {
  format::Sha256 sha;
  sha.update(bytes_of_tokens(block.tokens));
  sha.update(block.rows);
  sha.update(format::as_bytes(text));
  return sha.finish();
}

std::string kv_header_text(const KvBlock& block, const KvFileNotes& notes, const KvIdentity& identity) {
  std::map<std::string, std::string> metadata = {{kVersionKey, kKvVersion},
                                                 {"model", to_hex(identity.digest)},
                                                 {"parent", to_hex(notes.parent)},
                                                 {"first", fmt::format("{}", block.first)},
                                                 {"sha256", to_hex(digest_of(block, notes.text))},
                                                 {kPrecisionKey, std::string(kernels::to_string(identity.precision))}};
  if (!block.goes_on) metadata.emplace(kGoesOnKey, "false");
  KvHeader header;
  header.first = block.first;
  header.positions = static_cast<uint32_t>(block.tokens.size());
  header.goes_on = block.goes_on;
  header.text_bytes = notes.text.size();
  return format::write_header(kv_tensors(identity.shape, header), metadata);
}

/// The header's JSON text.
Result<std::string> read_header_json(const format::ReadFile& file) {
  std::string text(8, '\0');
  if (file.size_bytes() < text.size()) return Error{ErrorKind::corrupt, "it is too short to be a saved KV cache"};
  TRY(file.read(0, std::as_writable_bytes(std::span(text))));
  TRY_ASSIGN(const uint64_t length, format::parse_header_length(text, file.size_bytes()));
  if (length > kMaxKvHeaderBytes) return invalid("its header is too long for a saved KV cache");
  text.resize(length);
  TRY(file.read(8, std::as_writable_bytes(std::span(text))));
  return text;
}

/// Absent: the header declares no KV file.
std::optional<Metadata> find_kv_metadata(const format::ReadFile& file) {
  const auto json = read_header_json(file);
  if (!json) return std::nullopt;
  auto header = format::parse_header(*json, file.size_bytes());
  if (!header || !header->metadata.contains(kVersionKey)) return std::nullopt;
  return std::move(header->metadata);
}

/// Absent: one of another version.
std::optional<kernels::Precision> precision_of(const Metadata& metadata) {
  const auto named = metadata.find(kPrecisionKey);
  return named == metadata.end() ? kernels::Precision::exact : kernels::parse_precision(named->second);
}

Error is_another_models(const Metadata& metadata, const KvIdentity& identity) {
  const auto precision = precision_of(metadata);
  if (!precision || *precision == identity.precision)
    return invalid("it is of another model, or of other weights, layers, --kv-dtype or device; use it with those");
  return invalid(fmt::format("it was computed in another precision; use --precision {}", to_string(*precision)));
}

}  // namespace

Result<KvHeader> parse_kv_header(std::string_view json, uint64_t file_bytes, const KvIdentity& identity) {
  TRY_ASSIGN(const format::SafetensorsHeader header, format::parse_header(json, file_bytes));
  const Metadata& metadata = header.metadata;
  if (!metadata.contains(kVersionKey)) return invalid("it is not a saved KV cache (__metadata__ has no \"dspack_kv\")");
  TRY_ASSIGN(const std::string version, field_of(metadata, kVersionKey));
  if (version != kKvVersion) {
    return Error{ErrorKind::unsupported,
                 fmt::format("version {} of saved KV caches, and this program reads version {}; "
                             "use the program that wrote it, or let it be written again",
                             quote(version), kKvVersion)};
  }
  TRY_ASSIGN(const format::Digest model, find_digest(metadata, "model"));
  if (model != identity.digest) return is_another_models(metadata, identity);
  KvHeader result;
  result.data_start = header.data_start;
  TRY_ASSIGN(result.parent, find_digest(metadata, "parent"));
  TRY_ASSIGN(result.sha256, find_digest(metadata, "sha256"));
  TRY_ASSIGN(const std::string first, field_of(metadata, "first"));
  const auto number = parse_decimal(first);
  const uint64_t positions = length_of(header, kTokensName);
  if (positions == 0) return does_not_fit();
  if (!number || *number > identity.context || positions > identity.context - *number) {
    return invalid(fmt::format("it has positions that --ctx {} does not reach; use more", identity.context));
  }
  result.first = static_cast<uint32_t>(*number);
  result.positions = static_cast<uint32_t>(positions);
  result.text_bytes = length_of(header, kTextName);
  if (result.text_bytes > kMaxKvTextBytes) return does_not_fit();
  if (const auto goes_on = metadata.find(kGoesOnKey); goes_on != metadata.end()) {
    if (goes_on->second != "false" || !identity.shape.has_rings()) return does_not_fit();
    result.goes_on = false;
  }
  if (!std::ranges::equal(header.tensors, kv_tensors(identity.shape, result), is_same_tensor)) {
    return does_not_fit();
  }
  return result;
}

Result<KvContents> read_kv_contents(const format::ReadFile& file, const KvIdentity& identity) {
  KvContents contents;
  TRY_ASSIGN(const std::string json, read_header_json(file));
  TRY_ASSIGN(contents.header, parse_kv_header(json, file.size_bytes(), identity));
  contents.tokens.resize(contents.header.positions);
  TRY(file.read(contents.header.data_start, std::as_writable_bytes(std::span(contents.tokens))));
  return contents;
}

Result<KvFile> read_kv_file(const format::ReadFile& file, const KvIdentity& identity) {
  TRY_ASSIGN(KvContents contents, read_kv_contents(file, identity));
  const KvHeader& header = contents.header;
  KvFile content{
      .block = {.first = header.first, .tokens = std::move(contents.tokens), .rows = {}, .goes_on = header.goes_on},
      .notes = {.parent = header.parent, .text = {}}};
  uint64_t at = header.data_start + content.block.tokens.size() * sizeof(uint32_t);
  content.block.rows.resize(identity.shape.block_bytes(header.extent()));
  TRY(file.read(at, content.block.rows));
  at += content.block.rows.size();
  content.notes.text.resize(header.text_bytes);
  TRY(file.read(at, std::as_writable_bytes(std::span(content.notes.text))));
  if (digest_of(content.block, content.notes.text) != header.sha256) {
    return Error{ErrorKind::corrupt, "its bytes are not those that were written (SHA-256); remove it"};
  }
  return content;
}

bool is_kv_file(const format::ReadFile& file) {
  return find_kv_metadata(file).has_value();
}

std::optional<kernels::Precision> kv_file_precision(const format::ReadFile& file) {
  const auto metadata = find_kv_metadata(file);
  return metadata ? precision_of(*metadata) : std::nullopt;
}

uint64_t kv_file_bytes(const KvIdentity& identity, const KvExtent& extent) {
  return kPageBytes + (extent.end - extent.first) * sizeof(uint32_t) + identity.shape.block_bytes(extent);
}

Result<void> write_kv_file(format::FileSystem& files, const format::Path& path, const KvBlock& block,
                           const KvFileNotes& notes, const KvIdentity& identity) {
  const std::string header = kv_header_text(block, notes, identity);
  {
    TRY_ASSIGN(const auto file, format::create_temporary(files, path, format::Access::owner));
    uint64_t at = 0;
    for (const std::span<const std::byte> part :
         {format::as_bytes(header), bytes_of_tokens(block.tokens), std::span<const std::byte>(block.rows),
          format::as_bytes(notes.text)}) {
      TRY(file->write(at, part));
      at += part.size();
    }
    TRY(file->sync());
  }
  TRY(files.rename(format::temporary_of(path), path));
  return files.sync_folder(path.has_parent_path() ? path.parent_path() : format::Path("."));
}

}  // namespace dspack::runtime
