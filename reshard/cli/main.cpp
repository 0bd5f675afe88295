// reshard: repacks checkpoints.
#include "format/cli/cache_verb.h"
#include "format/cli/verb.h"
#include "kernels/device_facts.h"
#include "reshard/cli/verbs.h"

int main(int count, char** values) {
  using namespace dspack;  // NOLINT: the program's own file
  using namespace dspack::reshard;
  format::return_large_blocks();
  const format::Program program{.name = "reshard",
                                .verbs = {repack_verb(), inspect_verb(), verify_verb(), repair_verb(), unpack_verb(),
                                          link_verb(), seal_verb(), diff_verb(), publish_verb(), format::cache_verb()},
                                .when_interrupted = "run the same command again to resume",
                                .build_facts = kernels::device_facts};
  return format::run_program(program, count, values);
}
