// dsrun: runs mixture-of-experts models of the DeepSeek-V3 kind.
#include "runtime/cli/verbs.h"

int main(int count, char** values) {
  return dspack::format::run_program(dspack::runtime::dsrun_program(), count, values);
}
