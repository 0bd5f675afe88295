// What each verb does. They write data to stdout and notes for people to stderr.
// Threads: call from the main thread. Errors: those of the libraries; main prints them.
#pragma once

#include <stop_token>

#include "format/base/result.h"
#include "runtime/cli/options.h"

namespace dspack::runtime {

/// Exit status when nothing failed: 0, or 130 for an answer that the user interrupted.
[[nodiscard]] Result<int> run_generate(const RunOptions& options, const std::stop_token& stop);
/// The same by token ids: no tokenizer is read.
[[nodiscard]] Result<int> run_tokens(const RunOptions& options, const std::stop_token& stop);
/// Handles Ctrl-C itself, from loading on.
[[nodiscard]] Result<int> run_chat(const RunOptions& options);
[[nodiscard]] Result<int> run_logits(const LogitsOptions& options, const std::stop_token& stop);
[[nodiscard]] Result<int> run_eval(const EvalOptions& options, const std::stop_token& stop);
[[nodiscard]] Result<int> run_record(const RecordOptions& options, const std::stop_token& stop);
/// 0: within the tolerance; 1: beyond it.
[[nodiscard]] Result<int> run_compare(const CompareOptions& options, const std::stop_token& stop);
[[nodiscard]] Result<int> run_replay(const ReplayOptions& options, const std::stop_token& stop);
[[nodiscard]] Result<int> run_plan(const PlanOptions& options, const std::stop_token& stop);
[[nodiscard]] Result<int> run_tokenize(const TokenizeOptions& options, const std::stop_token& stop);

}  // namespace dspack::runtime
