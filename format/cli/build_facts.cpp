#include "format/cli/build_facts.h"

#include <fmt/format.h>

#include "dspack_commit.h"
#include "dspack_version.h"

namespace dspack::format {

std::string source_and_compiler() {
  return fmt::format("commit            {}\ncompiler          {}\n", kCommit, kCompiler);
}

}  // namespace dspack::format
