// Measures how fast a loaded model reads prompts and generates answers. Every repetition runs what `dsrun DIR -p` runs:
// a session that picks the likeliest token, drafts if the model was loaded to, and continues after an end token.
// Threads: single-thread. Lifetime: borrows model and session. Errors: those of the session; cancelled.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/bench/floor.h"

namespace dspack::runtime {

/// A case of `dsrun bench`: reading tokens of a prompt, or generating tokens of an answer, after others.
struct BenchCase {
  enum class Kind { prompt, answer };
  Kind kind = Kind::prompt;
  uint32_t tokens = 0;  // read at once, or generated one by one; at least one
  uint32_t depth = 0;   // positions that the sequence holds before

  /// The name in llama-bench's notation: "pp512", "tg128 @ d1024".
  [[nodiscard]] std::string name() const;
  /// Positions that it needs in total.
  [[nodiscard]] uint64_t positions() const;
};

/// All combinations of tokens and depths, except for zero tokens.
[[nodiscard]] std::vector<BenchCase> bench_cases(const std::vector<uint32_t>& prompts,
                                                 const std::vector<uint32_t>& answers,
                                                 const std::vector<uint32_t>& depths);

struct BenchOptions {
  uint32_t repetitions = 5;  // per case, counted
  bool warms_up = true;      // runs one more before them
  /// The tokens to read, at least as many as the longest case needs. They determine which experts are picked.
  std::vector<uint32_t> text;
  /// Positions of a depth that are computed; further ones are copies (Sequence::repeat). 0: all are computed.
  uint32_t computed_depth = 0;
};

struct BenchResult {
  BenchCase measured;
  std::vector<double> seconds;  // per repetition
  Work work;                    // sum over all repetitions, like all that follows
  StageSeconds stages{};        // zeros: not measured on this device
  double expert_waiting = 0;    // the part of Stage::experts spent waiting
  uint64_t drafted = 0, accepted = 0;

  [[nodiscard]] double tokens_per_second(double of_seconds) const;
  /// For the repetitions' median.
  [[nodiscard]] double tokens_per_second() const;
  /// For one repetition.
  [[nodiscard]] Floor floor(const MachineLimits& limits) const;
};

/// `count` token ids below `vocab`: the same in every run, uniformly distributed.
[[nodiscard]] std::vector<uint32_t> random_text(uint64_t count, uint32_t vocab);

class Bench {
 public:
  Bench(LoadedModel& loaded, Session& session, BenchOptions options)
      : loaded_(loaded), session_(session), options_(std::move(options)) {}

  /// Called with the number of the case's tokens done so far, over all repetitions.
  using Progress = std::function<void(uint64_t tokens)>;
  /// Precondition: the context and the text hold the case's positions.
  [[nodiscard]] Result<BenchResult> run(const BenchCase& what, const Progress& progress, const std::stop_token& stop);

 private:
  struct Counters;
  [[nodiscard]] Counters counters(BenchCase::Kind kind) const;
  [[nodiscard]] std::vector<uint32_t> text_of(const BenchCase& what) const;
  Result<void> prepare(const BenchCase& what, std::span<const uint32_t> text, const std::stop_token& stop);
  Result<void> speak(std::span<const uint32_t> prompt, uint32_t tokens, const TokenCallback& on_token,
                     const std::stop_token& stop);

  LoadedModel& loaded_;
  Session& session_;
  BenchOptions options_;
};

/// For people and for programs.
struct BenchReport {
  std::string model;         // as the user called it
  uint64_t model_bytes = 0;  // size of its tensors
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  uint64_t context = 0;
  uint64_t experts = 0, slots = 0;  // in the model; in memory at most
  std::string drafting;             // empty: none
  std::string text;                 // description of the text that was read
  MachineLimits limits;
  std::optional<double> core_share;  // share of the processor time that was wanted (core_share.h)
  std::vector<BenchResult> results;
};

/// Three tables in Markdown: tokens/s beside the floor, what a token needs, and where the time went.
[[nodiscard]] std::string to_markdown(const BenchReport& report);
[[nodiscard]] format::Json to_json(const BenchReport& report);

}  // namespace dspack::runtime
