#include "format/source/repository.h"

#include <fmt/format.h>

namespace dspack::format {

Result<std::unique_ptr<ByteSource>> Repository::open_known(std::string_view path, const KnownFile& known,
                                                           std::stop_token stop) {
  TRY_ASSIGN(auto source, open(path, std::move(stop)));
  if (source->size_bytes() != known.size_bytes) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{} has {} bytes where {} are expected; it is truncated or was replaced, fetch it again",
                             locate(path), source->size_bytes(), known.size_bytes)};
  }
  if (!known.version.empty() && source->version() != known.version) {
    return Error{ErrorKind::corrupt, fmt::format("{}: is not the file that was catalogued (its version {} became {})",
                                                 locate(path), known.version, source->version())};
  }
  return source;
}

}  // namespace dspack::format
