// Fetches whole tensors into the cache: adjacent ones with one request, several requests in parallel. Each tensor is
// checked and claimed once its run has arrived, so that a killed process resumes after it.
// Threads: one call at a time; it starts threads. Lifetime: borrows everything. Memory: a piece per connection. Errors:
// those of the origin and the disk; corrupt (a tensor had a wrong digest twice), naming file and tensor. A full disk is
// not an error: the tensors that do not fit are left out.
#pragma once

#include <span>
#include <vector>

#include "format/progress.h"
#include "runtime/access/fetch_context.h"

namespace dspack::runtime {

class TensorFetcher {
 public:
  explicit TensorFetcher(const FetchContext& context) : context_(context) {}

  /// Precondition: no tensor belongs to an expert. Only bytes are reported to `progress`.
  [[nodiscard]] Result<void> fetch(std::vector<uint32_t> tensors, format::Progress& progress,
                                   const std::stop_token& stop);
  /// The digest that the tensor must have: the manifest's, or an earlier fetch's; nullopt: neither is known.
  [[nodiscard]] std::optional<format::Digest> expected(uint32_t tensor) const;

 private:
  /// Adjacent tensors of one file.
  using Run = std::vector<uint32_t>;
  [[nodiscard]] std::vector<Run> runs_of(std::vector<uint32_t> tensors) const;
  /// Fetches a run; returns the tensors that arrived with a wrong digest.
  [[nodiscard]] Result<Run> fetch_run(const Run& run, unsigned lanes, format::Progress& progress,
                                      const std::stop_token& stop);
  [[nodiscard]] Result<void> fetch_checked(const Run& run, unsigned lanes, format::Progress& progress,
                                           const std::stop_token& stop);

  FetchContext context_;
};

}  // namespace dspack::runtime
