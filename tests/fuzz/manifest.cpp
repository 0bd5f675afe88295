// A manifest. Input: its JSON. It is parsed as it is, and again with the right seal set, so that what lies behind the
// seal is reached; a manifest that parses is then opened as the packed checkpoint that it describes.
#include <string>

#include "format/manifest.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/memory_repository.h"

using namespace dspack;
using format::Json;

namespace {

/// Canonical text with the seal that fits; nullopt of what is no JSON object.
std::optional<std::string> sealed(std::string_view text) {
  auto json = format::parse_json(text);
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
  const Json original = format::parse_json(text).value();
  const Json kept = format::parse_json(written).value();
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
