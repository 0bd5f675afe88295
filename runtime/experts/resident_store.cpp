#include "runtime/experts/resident_store.h"

#include <fmt/format.h>

#include "runtime/model/names.h"

namespace dspack::runtime {

namespace {

Error explained(const Error& error, ExpertKey key) {
  Error placed = error.in(fmt::format("layer {}, expert {}", key.layer.value, key.expert.value));
  if (error.kind == ErrorKind::not_found) placed.message += "; fetch it from where the repository is from";
  return placed;
}

}  // namespace

Result<std::vector<ExpertLease>> ResidentStore::acquire(LayerId layer, std::span<const ExpertId> experts,
                                                        const std::stop_token& stop) {
  std::vector<ExpertLease> leases;
  leases.reserve(experts.size());
  for (const ExpertId expert : experts) {
    const ExpertKey key{.layer = layer, .expert = expert};
    if (const auto found = resident_.find(key); found != resident_.end()) {
      ++stats_.hits;
      leases.push_back(found->second);
      continue;
    }
    ++stats_.misses;
    auto loaded = load(key, stop);
    if (!loaded) return explained(loaded.error(), key);
    leases.push_back(*loaded);
    resident_.emplace(key, std::move(*loaded));
  }
  return leases;
}

Result<ExpertLease> ResidentStore::load(ExpertKey key, const std::stop_token& stop) {
  auto weights = std::make_shared<ExpertWeights>();
  const std::string prefix = names::expert(key);
  WeightGroup group(context_);
  TRY(group.add_linear(&weights->gate, prefix + ".gate_proj.weight", inner_, hidden_));
  TRY(group.add_linear(&weights->up, prefix + ".up_proj.weight", inner_, hidden_));
  TRY(group.add_linear(&weights->down, prefix + ".down_proj.weight", hidden_, inner_));
  TRY_ASSIGN(weights->memory, group.load(ReadPurpose::experts, stop));
  std::set<std::string>& files = stats_.opened_files[key.layer];
  for (const format::TensorEntry* tensor : group.tensors())
    files.insert(context_.files.path(*tensor));
  stats_.read_experts.insert(key);
  ++stats_.resident_experts;
  stats_.resident_bytes += weights->memory->size_bytes();
  return ExpertLease(std::move(weights));
}

}  // namespace dspack::runtime
