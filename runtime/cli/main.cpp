// dsrun: runs mixture-of-experts models of the DeepSeek-V3 kind.
#include "format/cli/process.h"
#include "runtime/cli/verbs.h"

int main(int count, char** values) {
  dspack::format::return_large_blocks();
  return dspack::format::run_program(dspack::runtime::dsrun_program(), count, values);
}
