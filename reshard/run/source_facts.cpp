#include "reshard/run/source_facts.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/json.h"
#include "kernels/convert.h"
#include "reshard/plan/transform.h"
#include "reshard/run/companions.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {
namespace {

Result<uint32_t> layer_count(std::string_view config) {
  TRY_ASSIGN(const format::Json json, format::parse_json_file(config, format::kConfigDocument));
  if (!json.is_object()) return Error{ErrorKind::invalid, "is not a JSON object"};
  // Models with several parts keep the language model's fields in an object of their own.
  const auto text = json.find("text_config");
  const bool nested = text != json.end() && text->is_object();
  TRY_ASSIGN(const uint64_t layers, format::json_uint(nested ? *text : json, "num_hidden_layers"));
  if (layers >= 1 && layers <= kMaxId) return static_cast<uint32_t>(layers);
  return Error{ErrorKind::invalid, fmt::format("\"num_hidden_layers\" is {}: out of range", layers)};
}

}  // namespace

Result<uint32_t> decoder_layers(format::Repository& source, const std::stop_token& stop) {
  const auto text = source.read_text(kConfigPath, format::kConfigDocument.bytes, stop);
  if (!text) return text.error().in("the recipe needs to know the model's layers, from config.json");
  const auto count = layer_count(*text);
  return count ? count : count.error().in(source.locate(kConfigPath));
}

Result<Recipe> resolve_layers(const Recipe& recipe, format::Repository& source, const std::stop_token& stop) {
  if (!recipe.layers) return recipe;
  TRY_ASSIGN(const uint32_t count, decoder_layers(source, stop));
  auto map = format::select_layers(*recipe.layers, count);
  if (!map) return map.error().in("the recipe's layers");
  Recipe resolved = recipe;
  resolved.layers = std::move(*map);
  return resolved;
}

namespace {

using format::Checkpoint;
using format::TensorEntry;

constexpr uint64_t kSmallestBytes = 64ULL << 10;  // smaller tensors are not worth sharing
constexpr uint64_t kSampleBytes = 4096;
constexpr uint64_t kSamples = 16;  // per tensor whose first sample equals another's

using Group = std::vector<uint32_t>;

/// Tensors that may be equal according to the headers.
std::vector<Group> candidates(const Selection& selection, const Checkpoint& source) {
  std::map<std::tuple<Dtype, std::vector<uint64_t>>, Group> by_form;
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (tensor.place.expert || tensor.range.size() < kSmallestBytes || !takes(selection, tensor)) continue;
    by_form[{tensor.dtype, tensor.shape}].push_back(i);
  }
  std::vector<Group> groups;
  for (auto& [form, group] : by_form) {
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

/// Offset of a tensor's n-th sample.
uint64_t sample_offset(uint64_t bytes, uint64_t number) {
  return (bytes - kSampleBytes) / (kSamples - 1) * number;
}

class Sampler {
 public:
  Sampler(const Checkpoint& source, format::Repository& repository, unsigned jobs, const std::stop_token& stop)
      : source_(source), repository_(repository), jobs_(jobs), stop_(stop) {}

  /// Splits every group by the contents of samples [first, last) of its tensors; drops groups of one.
  Result<std::vector<Group>> part(const std::vector<Group>& groups, uint64_t first, uint64_t last) const {
    std::vector<std::vector<uint32_t>> by_file(source_.files().size());
    for (const Group& group : groups) {
      for (const uint32_t tensor : group)
        by_file[source_.tensors()[tensor].file].push_back(tensor);
    }
    std::map<uint32_t, format::Digest> digests;
    std::mutex mutex;
    const auto one = [&](uint64_t file, const std::stop_token& stop) -> Result<void> {
      if (by_file[file].empty()) return {};
      const format::CheckpointFile& known = source_.files()[file];
      TRY_ASSIGN(const auto bytes, repository_.open_known(known.path, {known.size_bytes, known.version}, stop));
      for (const uint32_t tensor : by_file[file]) {
        TRY_ASSIGN(const format::Digest digest, sample(*bytes, source_.tensors()[tensor].range, first, last, stop));
        const std::lock_guard lock(mutex);
        digests.emplace(tensor, digest);
      }
      return {};
    };
    TRY(run_jobs(by_file.size(), jobs_, one, stop_));
    std::vector<Group> parts;
    for (const Group& group : groups) {
      std::map<format::Digest, Group> equal;
      for (const uint32_t tensor : group)
        equal[digests.at(tensor)].push_back(tensor);
      for (auto& [digest, tensors] : equal) {
        if (tensors.size() > 1) parts.push_back(std::move(tensors));
      }
    }
    return parts;
  }

 private:
  static Result<format::Digest> sample(format::ByteSource& bytes, ByteRange range, uint64_t first, uint64_t last,
                                       const std::stop_token& stop) {
    format::Sha256 hash;
    std::vector<std::byte> buffer(kSampleBytes);
    for (uint64_t number = first; number < last; ++number) {
      TRY(bytes.read(range.begin + sample_offset(range.size(), number), buffer, stop));
      hash.update(buffer);
    }
    return hash.finish();
  }

  const Checkpoint& source_;
  format::Repository& repository_;
  unsigned jobs_;
  const std::stop_token& stop_;
};

/// Groups of two or more catalogue indices, each ascending, ordered by their first. Skips tensors below 64 KiB, and
/// routed experts: equal ones occur only if whole layers were repeated, which a layer map expresses without copies.
Result<std::vector<Group>> alike_tensors(const Selection& selection, const Checkpoint& source,
                                         format::Repository& repository, unsigned jobs, const std::stop_token& stop) {
  const Sampler sampler(source, repository, jobs, stop);
  TRY_ASSIGN(const std::vector<Group> first, sampler.part(candidates(selection, source), 0, 1));
  TRY_ASSIGN(std::vector<Group> groups, sampler.part(first, 1, kSamples));
  for (Group& group : groups)
    std::ranges::sort(group);
  std::ranges::sort(groups);
  return groups;
}

/// Checks, as its bytes arrive, whether all values of an F32 tensor are powers of two.
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

/// Reads the scales of one file, front to back; calls `is_exact` for those with only powers of two.
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

/// The quantisation that config.json describes, in the language model's part or at the top, or hf_quant_config.json.
Result<format::Quantization> stored_forms(format::Repository& source, const std::stop_token& stop) {
  const auto text = source.read_text(kConfigPath, format::kConfigDocument.bytes, stop);
  if (!text) return text.error().in("the recipe needs to know how weights are stored, from config.json");
  const std::string place = source.locate(kConfigPath);
  const auto json = format::parse_json_file(*text, format::kConfigDocument);
  if (!json) return json.error().in(place);
  if (!json->is_object()) return Error{ErrorKind::invalid, place + ": is not a JSON object"};
  const auto inner = json->find("text_config");
  const bool is_inner = inner != json->end() && inner->is_object() && inner->contains("quantization_config");
  const auto beside = source.read_text(format::kHfQuantConfigPath, format::kConfigDocument.bytes, stop);
  if (!beside && beside.error().kind != ErrorKind::not_found) return beside.error();
  const auto described = format::find_quantization(is_inner ? *inner : *json, beside ? *beside : std::string());
  if (!described) return described.error().in(source.locate(format::kHfQuantConfigPath));
  if (described->is_null()) return format::Quantization();
  if (!described->is_object())
    return Error{ErrorKind::invalid, place + ": \"quantization_config\" is not a JSON object"};
  TRY_ASSIGN(auto reading, format::parse_quantization(*described, place + ": in \"quantization_config\""));
  return std::move(reading.stored);
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
  if (std::ranges::any_of(recipe.transforms, [](const Transform& t) { return decodes(t.kind); })) {
    TRY_ASSIGN(facts.stored, stored_forms(repository, stop));
  }
  return facts;
}

}  // namespace dspack::reshard
