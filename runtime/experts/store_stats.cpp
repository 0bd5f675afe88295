#include "runtime/experts/store_stats.h"

#include <algorithm>
#include <utility>

namespace dspack::runtime {

CacheCounts& CacheCounts::operator+=(const CacheCounts& other) {
  for (uint64_t CacheCounts::*const count :
       {&CacheCounts::hits, &CacheCounts::late, &CacheCounts::missed, &CacheCounts::draft_misses,
        &CacheCounts::evictions, &CacheCounts::prefetches, &CacheCounts::prefetched_bytes,
        &CacheCounts::useful_prefetches, &CacheCounts::useful_bytes, &CacheCounts::wasted_bytes,
        &CacheCounts::foreseeable, &CacheCounts::foreseen, &CacheCounts::expected})
    this->*count += other.*count;
  waiting_seconds += other.waiting_seconds;
  return *this;
}

VramPhaseStats& VramPhaseStats::operator+=(const VramPhaseStats& other) {
  CacheCounts::operator+=(other);
  for (uint64_t VramPhaseStats::*const count :
       {&VramPhaseStats::moved, &VramPhaseStats::moved_bytes, &VramPhaseStats::computed,
        &VramPhaseStats::computed_bytes, &VramPhaseStats::promoted, &VramPhaseStats::promoted_bytes,
        &VramPhaseStats::returned, &VramPhaseStats::returned_bytes})
    this->*count += other.*count;
  return *this;
}

void VramStats::add(VramStats card) {
  for (size_t phase = 0; phase < kPhases; ++phase)
    phases[phase] += card.phases[phase];
  draft_misses += card.draft_misses;
  miss = card.miss;
  is_deterministic = card.is_deterministic;
  slots += card.slots;
  used += card.used;
  bytes += card.bytes;
  link_bytes_per_second = std::max(link_bytes_per_second, card.link_bytes_per_second);
  cards.push_back(std::move(card));
}

}  // namespace dspack::runtime
