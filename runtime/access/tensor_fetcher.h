// Brings whole tensors into the cache: adjacent ones in one request, several requests at a time, each tensor checked
// and claimed as soon as its bytes are there, so that a run that is killed goes on behind them.
// Threads: one call at a time; it uses several. Lifetime: borrows everything. Memory: a piece a connection. Errors:
// those of the origin and the disk; corrupt (a tensor that has not the bytes of its digest, twice), naming file and
// tensor. A full disk is none: then tensors are left out.
#pragma once

#include <span>
#include <vector>

#include "format/progress.h"
#include "runtime/access/fetch_context.h"

namespace dspack::runtime {

class TensorFetcher {
 public:
  explicit TensorFetcher(const FetchContext& context) : context_(context) {}

  /// Precondition: none of them is of an expert. Progress is told of bytes only.
  [[nodiscard]] Result<void> fetch(std::vector<uint32_t> tensors, format::Progress& progress,
                                   const std::stop_token& stop);
  /// What the tensor's bytes must be: by the manifest, or by an earlier fetch; nullopt: this is the first.
  [[nodiscard]] std::optional<format::Digest> expected(uint32_t tensor) const;

 private:
  /// Adjacent tensors of one file.
  using Run = std::vector<uint32_t>;
  [[nodiscard]] std::vector<Run> runs_of(std::vector<uint32_t> tensors) const;
  /// Fetches a run; returns the tensors that came with other bytes than they should have.
  [[nodiscard]] Result<Run> fetch_run(const Run& run, unsigned lanes, format::Progress& progress,
                                      const std::stop_token& stop);
  [[nodiscard]] Result<void> fetch_checked(const Run& run, unsigned lanes, format::Progress& progress,
                                           const std::stop_token& stop);

  FetchContext context_;
};

}  // namespace dspack::runtime
