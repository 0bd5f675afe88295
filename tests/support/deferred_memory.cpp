#include "tests/support/deferred_memory.h"

#include "format/base/check.h"

namespace dspack::test {

HostAccess::HostAccess(kernels::Slice place, uint64_t bytes, Kind kind) : kind_(kind) {
  auto* const buffer = dynamic_cast<DeferredHostBuffer*>(place.buffer);
  if (buffer == nullptr || bytes == 0) return;
  memory_ = buffer->memory();
  bytes_ = buffer->host().subspan(place.offset_bytes, bytes);
  const bool is_first = memory_->reads_to_come == 0 && memory_->writes_to_come == 0;
  if (kind == Kind::write && is_first) std::ranges::fill(bytes_, kPoison);
  if (kind == Kind::read && memory_->writes_to_come == 0) then_.assign(bytes_.begin(), bytes_.end());
  ++(kind == Kind::read ? memory_->reads_to_come : memory_->writes_to_come);
}

void HostAccess::run() const {
  if (memory_ == nullptr) return;
  --(kind_ == Kind::read ? memory_->reads_to_come : memory_->writes_to_come);
  DSPACK_CHECK(then_.empty() || std::ranges::equal(bytes_, then_), "what is copied has changed before it was");
}

}  // namespace dspack::test
