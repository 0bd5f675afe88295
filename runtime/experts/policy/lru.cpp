#include "runtime/experts/policy/lru.h"

#include <limits>

namespace dspack::runtime {

void RecencyOrder::hit(const ExpertUse& use) {
  if (use.is_draft) return;
  remove(use.key);
  put(use.key, use.pass + 1, use.last_row);
}

void RecencyOrder::insert(const ExpertUse& use) {
  put(use.key, use.is_draft ? 0 : use.pass + 1, use.last_row);
}

void RecencyOrder::insert_prefetched(ExpertKey key, uint64_t pass) {
  put(key, pass + 1, 0);
}

void RecencyOrder::remove(ExpertKey key) {
  const auto at = entries_.find(packed(key));
  if (at == entries_.end()) return;
  order_.erase(at->second);
  entries_.erase(at);
}

void RecencyOrder::hold(ExpertKey key) {
  if (const auto at = entries_.find(packed(key)); at != entries_.end()) order_.hold(at->second);
}

void RecencyOrder::put(ExpertKey key, uint64_t pass, uint32_t last_row) {
  const Entry entry{
      .pass = pass, .row = std::numeric_limits<uint32_t>::max() - last_row, .sequence = sequence_++, .key = key};
  entries_.emplace(packed(key), entry);
  order_.insert(entry);
}

}  // namespace dspack::runtime
