// dsrun DIR --tokens IDS: one answer in token ids, for models whose tokenizer is missing or not known.
#include <fmt/format.h>

#include <cstdio>

#include "format/cli/output.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/prompt.h"

namespace dspack::runtime {

Result<int> run_tokens(const RunOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler));
  TRY_ASSIGN(const std::vector<uint32_t> tokens, read_tokens(options.tokens));
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  note("token ids in, token ids out: no tokenizer is used");
  Session session(loaded->model(), loaded->speculator());
  const GenerateOptions generate = generate_options(*loaded, options);
  bool first = true;
  const auto print = [&](uint32_t token) {
    format::print_out(fmt::format("{}{}", first ? "" : " ", token));
    (void)std::fflush(stdout);  // a person reads along; a failure is noticed at the end
    first = false;
    return true;
  };
  TRY_ASSIGN(const Answer answer, session.generate(tokens, generate, sampler, print, stop));
  format::print_out("\n");
  report_end(answer.reason);
  TRY(report_stats(*loaded, session, options.stats_file));
  return answer.reason == StopReason::interrupted ? kInterruptedStatus : 0;
}

}  // namespace dspack::runtime
