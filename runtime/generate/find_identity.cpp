#include "runtime/generate/find_identity.h"

#include <fmt/format.h>

#include "format/file_system.h"

namespace dspack::runtime {

namespace {

class DigestedText {
 public:
  template <class... Arguments>
  void line(fmt::format_string<Arguments...> form, Arguments&&... arguments) {
    sha_.update(format::as_bytes(fmt::format(form, std::forward<Arguments>(arguments)...) + "\n"));
  }
  [[nodiscard]] format::Digest digest() { return sha_.finish(); }

 private:
  format::Sha256 sha_;
};

/// Adds a local file's time of change; nothing for other files.
Result<void> add_change(format::Repository& files, const std::string& path, DigestedText& text) {
  if (!files.is_local()) return {};
  TRY_ASSIGN(const auto info, format::posix_file_system().stat(files.locate(path)));
  // A copy that preserves modification times can replace a file by another of equal size, but the time of change cannot
  // be set.
  if (info) text.line("{}", info->changed_ns);
  return {};
}

Result<void> add_weights(const format::Checkpoint& checkpoint, format::Repository& files, DigestedText& text) {
  const bool has_manifest = checkpoint.manifest().has_value();
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    text.line("{} {} [{}]", tensor.name, to_string(tensor.dtype), fmt::join(tensor.shape, ","));
    // Without a manifest, whether a digest is known depends on earlier reads.
    if (has_manifest && tensor.digest) {
      text.line("{}", to_hex(*tensor.digest));
    } else {
      text.line("{} {} {}", checkpoint.files()[tensor.file].path, tensor.range.begin, tensor.range.end);
    }
  }
  if (has_manifest) return {};
  for (const format::CheckpointFile& file : checkpoint.files()) {
    text.line("{} {} {}", file.path, file.size_bytes, file.version);
    TRY(add_change(files, file.path, text));
  }
  return {};
}

}  // namespace

Result<KvIdentity> find_identity(LoadedModel& loaded, const std::stop_token& stop) {
  const Model& model = loaded.model();
  TRY_ASSIGN(const std::string config,
             loaded.access().files().read_text("config.json", format::kConfigDocument.bytes, stop));
  const KvShape shape = model.kv_shape();
  DigestedText text;
  text.line("dspack KV rows 1");
  text.line("{}", to_hex(format::sha256(config)));
  text.line("{} {}", loaded.chosen().is_gpu() ? "gpu" : "cpu", to_string(loaded.chosen().precision()));
  text.line("{}", format::to_string(model.layer_map()));
  for (const CachePlane& plane : shape.planes)
    text.line("{} {} {} {}", plane.name, plane.width, to_string(plane.dtype), plane.row_bytes);
  TRY(add_weights(loaded.checkpoint(), loaded.access().files(), text));
  return KvIdentity{
      .digest = text.digest(), .shape = shape, .context = model.context(), .precision = loaded.chosen().precision()};
}

}  // namespace dspack::runtime
