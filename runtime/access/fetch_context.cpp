#include "runtime/access/fetch_context.h"

#include <fmt/format.h>

namespace dspack::runtime {

Result<format::ByteSource*> DistantFiles::file(uint32_t file, const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  const auto open = files_.find(file);
  if (open != files_.end()) return open->second.get();
  const format::CheckpointFile& known = catalogue_.files()[file];
  TRY_ASSIGN(auto source,
             repository_.open_known(known.path, {.size_bytes = known.size_bytes, .version = known.version}, stop));
  return files_.emplace(file, std::move(source)).first->second.get();
}

Error DistantFiles::always_wrong(uint32_t tensor, std::optional<uint64_t> block) const {
  const format::TensorEntry& entry = catalogue_.tensors()[tensor];
  const std::string part = block ? fmt::format(" (block {})", *block) : "";
  return {ErrorKind::corrupt,
          fmt::format("{}: {}{} arrived twice with a wrong digest; the file there is damaged or was replaced",
                      repository_.locate(catalogue_.files()[entry.file].path), entry.name, part)};
}

}  // namespace dspack::runtime
