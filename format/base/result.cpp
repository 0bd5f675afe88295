#include "format/base/result.h"

namespace dspack {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::not_found: return "not found";
    case ErrorKind::invalid: return "invalid";
    case ErrorKind::corrupt: return "corrupt";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::io: return "i/o";
    case ErrorKind::network: return "network";
    case ErrorKind::budget: return "budget";
    case ErrorKind::conflict: return "conflict";
    case ErrorKind::cancelled: return "cancelled";
  }
  return "unknown";
}

Error out_of_memory() {
  return {ErrorKind::budget, kOutOfMemory};
}

Error out_of_threads(const std::system_error& reason) {
  return {ErrorKind::budget, std::string("the system refused a thread or a lock: ") + reason.what()};
}

}  // namespace dspack
