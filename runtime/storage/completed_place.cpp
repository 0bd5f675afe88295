#include "runtime/storage/completed_place.h"

#include <fmt/format.h>

#include <set>

#include "format/kept_headers.h"
#include "format/part/same_source.h"
#include "runtime/storage/remote_place.h"

namespace dspack::runtime {
namespace {

// Headers of an ordinary checkpoint that are read at the same time.
constexpr unsigned kPartHeaderJobs = 8;

}  // namespace

Result<std::unique_ptr<CompletedPlace>> CompletedPlace::open(std::unique_ptr<format::Repository> part,
                                                             const std::string& rest, const Opener& opener,
                                                             const std::stop_token& stop) {
  TRY_ASSIGN(auto catalogue, format::Checkpoint::open(*part, kPartHeaderJobs, stop));
  if (!format::is_part(catalogue)) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: is no part of a model (a packed repository whose recipe left something out), so "
                             "nothing is absent; leave out --absent-from",
                             part->description())};
  }
  std::unique_ptr<CompletedPlace> place(new CompletedPlace(std::move(part), std::move(catalogue)));
  TRY_ASSIGN(const std::string address, place->address_of_rest(rest));
  TRY_ASSIGN(place->rest_, opener(address));
  return place;
}

Result<std::string> CompletedPlace::address_of_rest(const std::string& rest) const {
  if (rest != kOriginWord) return rest;
  const format::Origin& origin = part_catalogue_.manifest()->origin;
  if (!origin.repository.empty()) return fmt::format("hf://{}@{}", origin.repository, origin.revision);
  return Error{ErrorKind::not_found,
               fmt::format("{}: was made from a folder or an address that it does not name; say where it is: "
                           "--absent-from PLACE",
                           part_->description())};
}

AbsentWeights CompletedPlace::absent_weights() const {
  AbsentWeights weights;
  std::set<ExpertKey> experts;
  for (const uint32_t number : absent_) {
    const format::TensorEntry& tensor = rest_catalogue_->tensors()[number];
    if (tensor.place.expert) {
      experts.insert({*tensor.place.layer, *tensor.place.expert});
      weights.expert_bytes += tensor.range.size();
    } else {
      ++weights.other_tensors;
      weights.other_bytes += tensor.range.size();
    }
  }
  weights.experts = experts.size();
  return weights;
}

bool CompletedPlace::is_origin() const {
  const format::Origin& origin = part_catalogue_.manifest()->origin;
  const auto hub = rest_->hub_origin();
  return hub && !origin.revision.empty() && hub->commit == origin.revision;
}

std::string CompletedPlace::rest_address() const {
  return rest_->is_local() ? rest_->description() : origin_of(*rest_);
}

Error CompletedPlace::another_checkpoint(const Error& difference) const {
  return {difference.kind,
          fmt::format("{} is not what {} was made from: {}; name the place that is, with --absent-from", rest_address(),
                      part_->description(), difference.message)};
}

Result<format::Checkpoint> CompletedPlace::open_catalogue(uint32_t layers, const std::stop_token& stop) {
  const format::Manifest& manifest = *part_catalogue_.manifest();
  TRY_ASSIGN(rest_catalogue_, format::Checkpoint::open(*rest_, kPartHeaderJobs, stop));
  format::Json headers;
  if (!rest_catalogue_->manifest()) {
    TRY_ASSIGN(headers, format::read_kept_headers(*part_, manifest, stop));
  }
  const bool is_hub = rest_->kind() == format::RepositoryKind::hub;
  if (const auto same = format::compare_sources(part_catalogue_, headers, *rest_catalogue_, is_hub); !same)
    return another_checkpoint(same.error());
  const auto end = manifest.recipe.contains("drop_mtp") ? std::optional(layers) : std::nullopt;
  auto completion = format::complete(part_catalogue_, *rest_catalogue_, end);
  if (!completion) return another_checkpoint(completion.error());
  if (completion->absent.empty()) {
    return Error{ErrorKind::not_found,
                 fmt::format("{} has nothing of what {} lacks; name another place with --absent-from", rest_address(),
                             part_->description())};
  }
  own_ = std::move(completion->own);
  absent_ = std::move(completion->absent);
  return std::move(completion->catalogue);
}

}  // namespace dspack::runtime
