#include "runtime/serve/server_metrics.h"

#include <fmt/format.h>

#include <string_view>

namespace dspack::runtime {

std::string metrics_text(const SchedulerCounts& counts, uint64_t request_bytes) {
  std::string text;
  const auto line = [&text](std::string_view name, std::string_view type, std::string_view help, auto value) {
    text += fmt::format("# HELP dspack_{0} {1}\n# TYPE dspack_{0} {2}\ndspack_{0} {3}\n", name, help, type, value);
  };
  line("requests_total", "counter", "Generations that got a place", counts.generations);
  line("requests_cancelled_total", "counter", "Generations whose client left", counts.cancelled);
  line("requests_failed_total", "counter", "Generations that ended in an error", counts.failed);
  line("requests_refused_total", "counter", "Requests refused because too many waited", counts.refused);
  line("prompt_tokens_total", "counter", "Tokens of prompts that were computed", counts.prompt_tokens);
  line("prompt_tokens_cached_total", "counter", "Tokens of prompts found in a cache", counts.kept_tokens);
  line("prompt_tokens_shared_total", "counter", "Of these, tokens that another answer's cache held",
       counts.copied_tokens);
  line("answer_tokens_total", "counter", "Tokens of answers", counts.answer_tokens);
  line("drafted_tokens_total", "counter", "Tokens that the MTP module drafted", counts.drafted_tokens);
  line("accepted_drafts_total", "counter", "Of these, tokens that the model confirmed", counts.accepted_drafts);
  line("passes_total", "counter", "Passes through the model", counts.passes);
  line("pass_rows_total", "counter", "Tokens in all passes", counts.rows);
  line("pass_seconds_total", "counter", "Time in passes", counts.seconds);
  line("requests_running", "gauge", "Generations that have a place", counts.busy);
  line("requests_waiting", "gauge", "Generations that wait for a place", counts.waiting);
  line("request_memory_bytes", "gauge", "Memory that requests have said they may need", request_bytes);
  if (!counts.cache) return text;
  const PrefixCacheCounts& cache = *counts.cache;
  line("prefix_cache_memory_bytes", "gauge", "KV rows that the prefix cache has in memory", cache.memory_bytes);
  line("prefix_cache_memory_blocks", "gauge", "Their blocks", cache.memory_blocks);
  line("prefix_cache_disk_bytes", "gauge", "Files of the prefix cache", cache.disk_bytes);
  line("prefix_cache_disk_blocks", "gauge", "Those of this model", cache.disk_blocks);
  line("prefix_cache_memory_tokens_total", "counter", "Tokens of prompts taken from it in memory", cache.memory_tokens);
  line("prefix_cache_disk_tokens_total", "counter", "Tokens of prompts taken from it on disk", cache.disk_tokens);
  return text;
}

}  // namespace dspack::runtime
