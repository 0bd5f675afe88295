#include "reshard/run/source_facts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>

#include "format/base/parallel.h"
#include "kernels/convert.h"
#include "reshard/plan/transform_rules.h"
#include "reshard/run/alike_tensors.h"
#include "reshard/run/resolve_layers.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

/// Whether all values of an F32 tensor are powers of two, told from its bytes as they come.
class PowersOfTwo {
 public:
  void take(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      value_[filled_++] = byte;
      if (filled_ < value_.size()) continue;
      filled_ = 0;
      all_ = all_ && kernels::exact_e8m0(std::bit_cast<float>(value_)).has_value();
    }
  }
  [[nodiscard]] bool all() const { return all_; }

 private:
  std::array<std::byte, sizeof(float)> value_{};
  size_t filled_ = 0;
  bool all_ = true;
};

/// Reads the scales of one file, front to back.
Result<void> look_at(const std::vector<uint32_t>& scales, const format::Checkpoint& source,
                     format::Repository& repository, const std::function<void(uint32_t)>& is_exact,
                     const std::stop_token& stop) {
  TensorReader reader(repository, source);
  for (const uint32_t scale : scales) {
    PowersOfTwo values;
    const format::ByteSink look = [&](std::span<const std::byte> piece) -> Result<void> {
      values.take(piece);
      return {};
    };
    TRY(reader.stream(source.tensors()[scale], look, stop));
    if (values.all()) is_exact(scale);
  }
  return {};
}

Result<std::set<uint32_t>> exact_scales(const Recipe& recipe, const format::Checkpoint& source,
                                        format::Repository& repository, unsigned jobs, const std::stop_token& stop) {
  const auto is_narrowed = [&](const TensorEntry& weight) {
    return takes(recipe.selection, weight) && std::ranges::any_of(recipe.transforms, [&](const Transform& transform) {
             return transform.kind == TransformKind::scales_to_e8m0 && fits(transform.where, weight);
           });
  };
  std::vector<std::vector<uint32_t>> by_file(source.files().size());
  for (const TensorEntry& weight : source.tensors()) {
    const std::optional<uint32_t> scale = is_narrowed(weight) ? narrowable_scales(weight, source) : std::nullopt;
    if (scale && takes(recipe.selection, source.tensors()[*scale]))
      by_file[source.tensors()[*scale].file].push_back(*scale);
  }
  for (std::vector<uint32_t>& scales : by_file)
    std::ranges::sort(scales, {}, [&](uint32_t i) { return source.tensors()[i].range.begin; });
  std::set<uint32_t> exact;
  std::mutex mutex;
  const auto is_exact = [&](uint32_t scale) {
    const std::lock_guard lock(mutex);
    exact.insert(scale);
  };
  const auto one = [&](uint64_t file, const std::stop_token& stop_one) {
    return look_at(by_file[file], source, repository, is_exact, stop_one);
  };
  TRY(run_jobs(by_file.size(), jobs, one, stop));
  return exact;
}

}  // namespace

Result<SourceFacts> find_facts(const Recipe& recipe, const format::Checkpoint& source, format::Repository& repository,
                               unsigned jobs, const std::stop_token& stop) {
  SourceFacts facts;
  if (recipe.drop_mtp) {
    TRY_ASSIGN(facts.decoder_layers, decoder_layers(repository, stop));
  }
  if (recipe.dedupe) {
    TRY_ASSIGN(facts.alike, alike_tensors(recipe.selection, source, repository, jobs, stop));
  }
  const bool narrows = std::ranges::any_of(recipe.transforms,
                                           [](const Transform& t) { return t.kind == TransformKind::scales_to_e8m0; });
  if (narrows) {
    TRY_ASSIGN(facts.exact_scales, exact_scales(recipe, source, repository, jobs, stop));
  }
  return facts;
}

}  // namespace dspack::reshard
