// A saved KV cache. Input: its header's JSON, for which a file is made as long as the header claims; and the same bytes
// as a whole file. The model is one of two layers.
#include "runtime/generate/kv_file.h"

#include <cstring>
#include <string>

#include "tests/fuzz/shard.h"
#include "tests/fuzz/target.h"

using namespace dspack;

namespace {

constexpr uint64_t kMaxMadeBytes = 64 << 10;  // of files with what the header claims

class MemoryFile final : public format::ReadFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size_bytes() const override { return bytes_.size(); }
  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset)
      return Error{ErrorKind::corrupt, "the file ends too early"};
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return {};
  }

 private:
  std::string bytes_;
};

runtime::KvIdentity identity() {
  return {.digest = format::sha256("model"),
          .shape = {.layers = 2, .planes = {{.name = "latent", .width = 4, .dtype = Dtype::f32, .row_bytes = 16}}},
          .context = 64};
}

void check_file(const runtime::KvFile& file, std::string_view bytes) {
  DSPACK_CHECK(!file.block.tokens.empty() && file.block.end() <= 64, "positions that the model does not have");
  DSPACK_CHECK(file.block.rows.size() == identity().shape.block_bytes(file.block.extent()), "other rows");
  DSPACK_CHECK(file.notes.text.size() <= runtime::kMaxKvTextBytes && bytes.ends_with(file.notes.text), "another text");
}

/// With the digest of `data`, if the header has a place for it: then the file must be read, whatever else it says.
void check_made(std::string json, const runtime::KvHeader& header, uint64_t file_bytes) {
  std::string data(file_bytes - 8 - json.size(), '\0');
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<char>(i * 7);
  const std::string said = "\"sha256\":\"" + to_hex(header.sha256) + '"';
  const size_t place = json.find(said);
  const bool is_right = place != std::string::npos;
  if (is_right) json.replace(place, said.size(), "\"sha256\":\"" + to_hex(format::sha256(data)) + '"');
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(json.size() >> (8 * i));
  bytes += json + data;
  const MemoryFile file(bytes);
  DSPACK_CHECK(runtime::is_kv_file(file), "a file that does not say what it is");
  const auto read = runtime::read_kv_file(file, identity());
  if (read) return check_file(*read, bytes);
  fuzz::check_refusal(read.error());
  // A header may have the key twice, and then mean the other one.
  const bool has_one = json.find("sha256") == json.rfind("sha256") && json.find('\\') == std::string::npos;
  DSPACK_CHECK(!is_right || !has_one, read.error().message);
}

void check_header(std::string_view json) {
  const uint64_t file_bytes = fuzz::claimed_file_bytes(json);
  const auto header = runtime::parse_kv_header(json, file_bytes, identity());
  if (!header) return fuzz::check_refusal(header.error());
  DSPACK_CHECK(header->positions > 0 && header->positions <= 64 && header->first <= 64 - header->positions,
               "positions that the model does not have");
  DSPACK_CHECK(header->text_bytes <= runtime::kMaxKvTextBytes, "a text that is too long");
  const uint64_t bytes = header->positions * 4 + identity().shape.block_bytes(header->extent()) + header->text_bytes;
  DSPACK_CHECK(header->data_start == 8 + json.size() && header->data_start + bytes == file_bytes,
               "the file has more than what it says");
  if (file_bytes <= kMaxMadeBytes && json.size() <= runtime::kMaxKvHeaderBytes)
    check_made(std::string(json), *header, file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::as_text(data, size);
  check_header(input);
  const MemoryFile file{std::string(input)};
  const auto read = runtime::read_kv_file(file, identity());
  read ? check_file(*read, input) : fuzz::check_refusal(read.error());
  DSPACK_CHECK(!read || runtime::is_kv_file(file), "a file that does not say what it is");
  (void)runtime::kv_file_precision(file);
  return 0;
}
