// A manifest. Input: its JSON. It is parsed as it is, and again with the right seal set, so that what lies behind the
// seal is reached; a manifest that parses is then opened as the packed checkpoint that it describes.
#include <algorithm>
#include <string>

#include "format/json.h"
#include "format/manifest.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/memory_repository.h"

using namespace dspack;
using format::Json;
using format::Manifest;

namespace {

/// Canonical text with the seal that fits; nullopt of what is no JSON object.
std::optional<std::string> sealed(std::string_view text) {
  auto json = format::parse_json(text, format::kManifestDocument);
  if (!json || !json->is_object()) return std::nullopt;
  (*json)[format::kSealKey] = "";
  (*json)[format::kSealKey] = to_hex(format::sha256(format::canonical_json(*json)));
  return format::canonical_json(*json) + "\n";
}

/// Whether all of `written` stands in `original`, which may hold keys that this version passes over. Lists are whole.
bool is_part_of(const Json& written, const Json& original) {
  if (written.is_array()) {
    if (!original.is_array() || written.size() != original.size()) return false;
    for (size_t i = 0; i < written.size(); ++i) {
      if (!is_part_of(written[i], original[i])) return false;
    }
    return true;
  }
  if (!written.is_object()) return written == original;
  if (!original.is_object()) return false;
  for (const auto& [key, value] : written.items()) {
    if (key == format::kSealKey) continue;  // of another text
    if (!original.contains(key) || !is_part_of(value, original[key])) return false;
  }
  return true;
}

bool same(const format::PackedExpert& a, const format::PackedExpert& b) {
  return a.key == b.key && a.digest == b.digest;
}

bool same(const format::RowBlocks& a, const format::RowBlocks& b) {
  return a.tensor == b.tensor && a.rows_per_block == b.rows_per_block && a.digests == b.digests;
}

bool same(const std::optional<format::CompressedForm>& a, const std::optional<format::CompressedForm>& b) {
  if (!a || !b) return !a && !b;
  return a->size_bytes == b->size_bytes && a->sha256 == b->sha256 && a->frames == b->frames;
}

bool same(const format::LayoutTensor& a, const format::LayoutTensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.data == b.data;
}

template <class T>
bool same_lists(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const T& x, const T& y) { return same(x, y); });
}

/// Whether writing has lost nothing of what was read about the files.
bool same_files(const Manifest& a, const Manifest& b) {
  if (a.files.size() != b.files.size() || a.layouts.size() != b.layouts.size()) return false;
  for (size_t i = 0; i < a.layouts.size(); ++i) {
    if (!same_lists(a.layouts[i].tensors, b.layouts[i].tensors)) return false;
  }
  for (size_t i = 0; i < a.files.size(); ++i) {
    const format::PackedFile& x = a.files[i];
    const format::PackedFile& y = b.files[i];
    if (x.path != y.path || x.part != y.part || x.layer != y.layer || x.layout != y.layout) return false;
    if (x.size_bytes != y.size_bytes || x.data_start != y.data_start || x.sha256 != y.sha256) return false;
    if (!same(x.zstd, y.zstd)) return false;
    if (x.tensors != y.tensors || !same_lists(x.experts, y.experts) || !same_lists(x.row_blocks, y.row_blocks))
      return false;
  }
  return a.companions.size() == b.companions.size() && a.source.size() == b.source.size();
}

void check_open(const std::string& text) {
  std::map<std::string, fuzz::MemoryFile> files{{format::kManifestPath, {text, text.size()}}};
  fuzz::MemoryRepository repository(std::move(files));
  const auto checkpoint = format::Checkpoint::open(repository, 1, {});
  if (!checkpoint) {
    fuzz::check_refusal(checkpoint.error());  // a tensor in two files, say
    return;
  }
  fuzz::check_catalogue(*checkpoint);
}

void check_sealed(const std::string& text) {
  const auto manifest = format::parse_manifest(text);
  if (!manifest) {
    fuzz::check_refusal(manifest.error());
    DSPACK_CHECK(manifest.error().kind != ErrorKind::corrupt, "the right seal is refused");
    return;
  }
  const std::string written = write_manifest(*manifest);
  const auto again = format::parse_manifest(written);
  DSPACK_CHECK(again.has_value(), again.error().message);
  DSPACK_CHECK(write_manifest(*again) == written, "written twice, two texts");
  DSPACK_CHECK(same_files(*manifest, *again), "something of the files is lost in writing");
  const Json original = format::parse_json(text, format::kManifestDocument).value();
  const Json kept = format::parse_json(written, format::kManifestDocument).value();
  DSPACK_CHECK(is_part_of(kept, original), "writing invents or changes something");
  // Nothing was passed over: the text was canonical, and it must be the same.
  if (is_part_of(original, kept)) DSPACK_CHECK(written == text, "a canonical manifest is written differently");
  check_open(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::as_text(data, size);
  const auto manifest = format::parse_manifest(text);
  if (!manifest) fuzz::check_refusal(manifest.error());
  if (const auto fixed = sealed(text)) check_sealed(*fixed);
  return 0;
}
