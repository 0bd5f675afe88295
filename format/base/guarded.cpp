#include "format/base/guarded.h"

#include <string>

namespace dspack {

Error out_of_memory() {
  return {ErrorKind::budget, kOutOfMemory};
}

Error out_of_threads(const std::system_error& reason) {
  return {ErrorKind::budget, std::string("the system refused a thread or a lock: ") + reason.what()};
}

}  // namespace dspack
