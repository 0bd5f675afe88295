#include "runtime/storage/remote_origin.h"

#include <fmt/format.h>

namespace dspack::runtime {

std::string RemoteOrigin::place_of(uint32_t tensor) const {
  const format::TensorEntry& entry = catalogue_.tensors()[tensor];
  return fmt::format("{}: {}", repository_.locate(catalogue_.files()[entry.file].path), entry.name);
}

Result<format::ByteSource*> RemoteOrigin::file(uint32_t file, const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  const auto open = files_.find(file);
  if (open != files_.end()) return open->second.get();
  const format::CheckpointFile& known = catalogue_.files()[file];
  TRY_ASSIGN(auto source,
             repository_.open_known(known.path, {.size_bytes = known.size_bytes, .version = known.version}, stop));
  return files_.emplace(file, std::move(source)).first->second.get();
}

}  // namespace dspack::runtime
