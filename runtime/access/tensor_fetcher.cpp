#include "runtime/access/tensor_fetcher.h"

#include <algorithm>

#include "format/base/parallel.h"
#include "format/http/connections.h"

namespace dspack::runtime {
namespace {

using format::Digest;

// Adjacent tensors share a request up to this size, which bounds the loss if the process is killed, and the work of one
// connection.
constexpr uint64_t kRunBytes = 16ULL << 20;

}  // namespace

std::optional<Digest> TensorFetcher::expected(uint32_t tensor) const {
  const auto& declared = context_.origin.catalogue().tensors()[tensor].digest;
  return declared ? declared : context_.cache.recorded(tensor);
}

std::vector<TensorFetcher::Run> TensorFetcher::runs_of(std::vector<uint32_t> tensors) const {
  const auto& all = context_.origin.catalogue().tensors();
  const auto place = [&](uint32_t tensor) { return std::pair(all[tensor].file, all[tensor].range.begin); };
  std::ranges::sort(tensors, {}, place);
  std::vector<Run> runs;
  for (const uint32_t tensor : tensors) {
    const bool joins = !runs.empty() && all[runs.back().back()].file == all[tensor].file &&
                       all[runs.back().back()].range.end == all[tensor].range.begin &&
                       all[tensor].range.end - all[runs.back().front()].range.begin <= kRunBytes;
    if (joins) {
      runs.back().push_back(tensor);
    } else {
      runs.push_back({tensor});
    }
  }
  return runs;
}

Result<TensorFetcher::Run> TensorFetcher::fetch_run(const Run& run, unsigned lanes, format::Progress& progress,
                                                    const std::stop_token& stop) {
  const auto& all = context_.origin.catalogue().tensors();
  const ByteRange range{all[run.front()].range.begin, all[run.back()].range.end};
  std::vector<std::pair<uint32_t, Digest>> good;
  Run bad;
  size_t next = 0;
  uint64_t at = 0;  // in the tensor
  format::Sha256 hash;
  const auto end_tensors = [&] {
    for (; next < run.size() && at == all[run[next]].range.size(); ++next, at = 0) {
      const Digest digest = hash.finish();
      const std::optional<Digest> wanted = expected(run[next]);
      if (wanted && *wanted != digest) {
        bad.push_back(run[next]);
      } else {
        good.emplace_back(run[next], digest);
      }
    }
  };
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    context_.origin.count(WeightPurpose::always_needed, bytes.size());
    progress.advanced(bytes.size());
    while (!bytes.empty()) {
      end_tensors();
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), all[run[next]].range.size() - at));
      hash.update(part);
      if (!context_.space.is_full()) TRY(context_.space.judge(context_.cache.write(run[next], at, part)));
      at += part.size();
      bytes = bytes.subspan(part.size());
    }
    return {};
  };
  TRY_ASSIGN(format::ByteSource * file, context_.origin.file(all[run.front()].file, stop));
  format::Connections connections({lanes, lanes});
  TRY_ASSIGN(const auto first, connections.take(0, stop));
  TRY(stream_in_parallel(*file, range, connections, format::kPieceBytes, sink, stop));
  end_tensors();
  if (!context_.space.is_full() && !good.empty()) TRY(context_.space.judge(context_.cache.claim(good)));
  return bad;
}

Result<void> TensorFetcher::fetch_checked(const Run& run, unsigned lanes, format::Progress& progress,
                                          const std::stop_token& stop) {
  TRY_ASSIGN(const Run bad, fetch_run(run, lanes, progress, stop));
  format::SilentProgress silent;
  for (const uint32_t tensor : bad) {
    context_.origin.count_refetch();  // bytes damaged by a network often arrive intact the second time
    TRY_ASSIGN(const Run again, fetch_run({tensor}, lanes, silent, stop));
    if (again.empty()) continue;
    return context_.origin.always_wrong(tensor);
  }
  return {};
}

Result<void> TensorFetcher::fetch(std::vector<uint32_t> tensors, format::Progress& progress,
                                  const std::stop_token& stop) {
  std::vector<Run> runs = runs_of(std::move(tensors));
  const auto is_small = [&](const Run& run) {
    return context_.origin.catalogue().tensors()[run.front()].range.size() <= kRunBytes;
  };
  const auto large = std::stable_partition(runs.begin(), runs.end(), is_small);
  const auto small_count = static_cast<uint64_t>(large - runs.begin());
  const auto done = run_jobs(
      small_count, context_.connections,
      [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
        if (context_.space.is_full()) return {};
        return fetch_checked(runs[i], 1, progress, stop_one);
      },
      stop);
  if (!done) return done.error();
  for (auto run = large; run != runs.end() && !context_.space.is_full(); ++run)
    TRY(fetch_checked(*run, context_.connections, progress, stop));
  return {};
}

}  // namespace dspack::runtime
