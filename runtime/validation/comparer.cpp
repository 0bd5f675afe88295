#include "runtime/validation/comparer.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>

#include "runtime/validation/module_names.h"
#include "runtime/weights/host_rows.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kHead = "lm_head";
constexpr std::string_view kLogits = "logits";

std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

Comparer::Entry& Comparer::entry(std::string_view module) {
  const auto found = places_.find(module);
  if (found != places_.end()) return entries_[found->second];
  places_.emplace(std::string(module), entries_.size());
  entries_.emplace_back().found.module = module;
  return entries_.back();
}

void Comparer::finish_entry(Entry& entry, uint32_t rows) {
  entry.found.rows = rows;
  if (entry.finished == 0) entry.finished = ++finished_;
}

double Comparer::tolerance_of(Dtype dtype) const {
  return options_.tolerance.value_or(default_tolerance(dtype));
}

const format::TensorInfo* Comparer::find_output(std::string_view module) const {
  if (is_router(module)) return find_routing(module).logits;
  for (const char* suffix : {".output", ".output.0"}) {
    const format::TensorInfo* tensor = reference_.find(std::string(module) + suffix);
    if (tensor != nullptr) return tensor;
  }
  return module == kHead ? reference_.find(kLogits) : nullptr;
}

// False: a routed expert got another number of tokens than in the reference. Error: the tensor does not fit this model.
Result<bool> Comparer::same_rows(std::string_view module, const format::TensorInfo& tensor, uint64_t rows,
                                 uint64_t cols) const {
  if (is_number(tensor.dtype) && has_width(tensor, cols)) {
    if (value_count(tensor) == rows * cols) return true;
    if (is_routed(module)) return false;
  }
  return Error{
      ErrorKind::invalid,
      fmt::format("{}: tensor \"{}\" is {} {}, but this model computes F32 [{}, {}] there; is it a recording of "
                  "this model and of these tokens?",
                  reference_.path(), tensor.name, to_string(tensor.dtype), shape_text(tensor.shape), rows, cols)};
}

Result<Comparer::ComparedRows> Comparer::read_piece(const format::TensorInfo& tensor, const kernels::Rows& rows,
                                                    uint64_t first_row) const {
  ComparedRows piece;
  TRY_ASSIGN(piece.reference, reference_.numbers(tensor, first_row * rows.cols, uint64_t{rows.rows} * rows.cols));
  piece.here = widened(download_rows(queue_, rows));
  return piece;
}

void Comparer::input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (status_) status_ = compare_input(module, rows, total_rows);
}

Result<void> Comparer::compare_input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  const format::TensorInfo* tensor = reference_.find(input_tensor(module));
  if (tensor == nullptr) tensor = reference_.find(std::string(module) + ".input");
  if (tensor == nullptr) return {};
  compared_.insert(tensor->name);
  Entry& found = entry(module);
  ErrorSums& sums = found.found.input ? *found.found.input : found.found.input.emplace();
  found.found.input_tolerance = tolerance_of(tensor->dtype);
  TRY_ASSIGN(const bool same, same_rows(module, *tensor, total_rows, rows.cols));
  sums.other_rows = !same;
  if (!same) return {};
  TRY_ASSIGN(const ComparedRows piece, read_piece(*tensor, rows, found.input_rows));
  found.input_rows += rows.rows;
  sums.add(piece.here, piece.reference);
  if (options_.inject) upload_rows(queue_, rows, std::vector<float>(piece.reference.begin(), piece.reference.end()));
  return {};
}

void Comparer::output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (status_) status_ = compare_output(module, rows, total_rows);
}

Result<void> Comparer::compare_output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  Entry& found = entry(module);
  finish_entry(found, total_rows);
  const format::TensorInfo* tensor = find_output(module);
  if (tensor == nullptr) return {};
  compared_.insert(tensor->name);
  ErrorSums& sums = found.found.output ? *found.found.output : found.found.output.emplace();
  found.found.output_tolerance = tolerance_of(tensor->dtype);
  TRY_ASSIGN(const bool same, same_rows(module, *tensor, total_rows, rows.cols));
  sums.other_rows = !same;
  if (!same) return {};
  TRY_ASSIGN(const ComparedRows piece, read_piece(*tensor, rows, found.output_rows));
  found.output_rows += rows.rows;
  sums.add(piece.here, piece.reference);
  if (module == kHead) compare_logits(piece, rows.cols);
  return {};
}

void Comparer::compare_logits(const ComparedRows& piece, uint64_t cols) {
  if (!logits_) logits_.emplace();
  for (size_t first = 0; first < piece.here.size(); first += cols) {
    logits_->add(std::span(piece.here).subspan(first, cols), std::span(piece.reference).subspan(first, cols));
  }
}

NotCompared Comparer::explain(const format::TensorInfo& tensor) const {
  const std::string_view name = tensor.name;
  const auto says = [&](std::string reason, bool departs = false) {
    return NotCompared{.name = tensor.name, .reason = std::move(reason), .departs = departs};
  };
  if (name == kInputIds || name == "model.embed_tokens.input.0") return says("the tokens themselves");
  if (name == kLogits && logits_) return says("the logits were compared as lm_head's output");
  if (name.find(".kv_b_proj.") != std::string_view::npos)
    return says("attention in its absorbed form does not compute it");
  const auto module = name.substr(0, std::min(name.find(".input"), name.find(".output")));
  if (places_.contains(module)) return says("a further argument or result of a module that was compared");
  if (is_routed(module)) return says("no token was routed there by this program", true);
  return says("this program has no such module");
}

Result<Comparison> Comparer::finish() {
  TRY(status_);
  std::ranges::stable_sort(entries_, {}, &Entry::finished);
  places_.clear();
  Comparison comparison;
  comparison.logits = logits_;
  for (Entry& entry : entries_) {
    places_.emplace(entry.found.module, places_.size());
    if (entry.found.input || entry.found.output) {
      comparison.modules.push_back(std::move(entry.found));
    } else {
      comparison.only_here.push_back({.name = entry.found.module, .reason = "the recording does not have it"});
    }
  }
  for (const auto& [name, tensor] : reference_.tensors()) {
    if (!compared_.contains(name)) comparison.only_in_reference.push_back(explain(tensor));
  }
  if (!comparison.modules.empty()) return comparison;
  return Error{ErrorKind::invalid,
               fmt::format("{}: none of its {} tensors belongs to a module of this model; names look like "
                           "model.layers.0.self_attn.o_proj.output, or \"logits\"",
                           reference_.path(), reference_.tensors().size())};
}

// Router choices.

namespace {

// One token's choice as a row over all experts: the weight of each chosen expert, else 0. So the order in which an
// implementation lists experts does not matter.
template <class Id>
std::vector<double> row_of(std::span<const Id> ids, std::span<const double> weights, uint32_t experts) {
  std::vector<double> row(experts);
  for (size_t i = 0; i < ids.size(); ++i)
    row[static_cast<size_t>(ids[i])] = weights[i];
  return row;
}

template <class Id, class Other>
bool same_experts(std::span<const Id> a, std::span<const Other> b) {
  std::vector<int64_t> left(a.begin(), a.end());
  std::vector<int64_t> right(b.begin(), b.end());
  std::ranges::sort(left);
  std::ranges::sort(right);
  return left == right;
}

}  // namespace

// Implementations return (logits, weights, indices), (indices, weights) or logits alone; type and width tell them
// apart.
Comparer::RouterTensors Comparer::find_routing(std::string_view module) const {
  RouterTensors found;
  for (const char* suffix : {".output", ".output.0", ".output.1", ".output.2"}) {
    const format::TensorInfo* tensor = reference_.find(std::string(module) + suffix);
    if (tensor == nullptr) continue;
    if (is_integer(tensor->dtype) && has_width(*tensor, config_.top_k)) {
      found.ids = tensor;
    } else if (is_number(tensor->dtype) && has_width(*tensor, config_.experts)) {
      found.logits = tensor;
    } else if (is_number(tensor->dtype) && has_width(*tensor, config_.top_k)) {
      found.weights = tensor;
    }
  }
  return found;
}

Result<void> Comparer::check_routing(const RouterTensors& tensors) const {
  for (const format::TensorInfo* tensor : {tensors.ids, tensors.weights}) {
    if (tensor == nullptr || value_count(*tensor) == uint64_t{tokens_} * config_.top_k) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("{}: tensor \"{}\" is {}, but this model chooses {} experts for {} tokens",
                             reference_.path(), tensor->name, shape_text(tensor->shape), config_.top_k, tokens_)};
  }
  return {};
}

Result<Comparer::Choices> Comparer::read_choices(const RouterTensors& tensors, const Routing& routing,
                                                 uint64_t first_row) const {
  const uint64_t count = uint64_t{routing.rows} * routing.top_k;
  const uint64_t first = first_row * routing.top_k;
  Choices choices;
  TRY_ASSIGN(choices.wanted_ids, reference_.integers(*tensors.ids, first, count));
  for (const int64_t id : choices.wanted_ids) {
    if (id >= 0 && id < config_.experts) continue;
    return Error{ErrorKind::invalid, fmt::format("{}: tensor \"{}\" names expert {}; this model has {}",
                                                 reference_.path(), tensors.ids->name, id, config_.experts)};
  }
  choices.ids.resize(count);
  queue_.download(std::as_writable_bytes(std::span(choices.ids)), routing.ids);
  queue_.synchronize();
  // If the recording has no weights, only the choice is compared.
  choices.weights.assign(count, 1.0);
  choices.wanted_weights.assign(count, 1.0);
  if (tensors.weights == nullptr) return choices;
  TRY_ASSIGN(choices.wanted_weights, reference_.numbers(*tensors.weights, first, count));
  const std::vector<float> weights = download_rows(
      queue_, {.data = routing.weights, .rows = routing.rows, .cols = routing.top_k, .stride = routing.top_k});
  choices.weights.assign(weights.begin(), weights.end());
  return choices;
}

void Comparer::routing(std::string_view module, const Routing& routing) {
  if (status_) status_ = compare_routing(module, routing);
}

Result<void> Comparer::compare_routing(std::string_view module, const Routing& routing) {
  const RouterTensors tensors = find_routing(module);
  if (tensors.ids == nullptr) return {};
  TRY(check_routing(tensors));
  Entry& found = entry(fmt::format("{} (routing)", module));
  finish_entry(found, tokens_);
  compared_.insert(tensors.ids->name);
  if (tensors.weights != nullptr) compared_.insert(tensors.weights->name);
  ErrorSums& sums = found.found.output ? *found.found.output : found.found.output.emplace();
  found.found.output_tolerance = tolerance_of(tensors.weights != nullptr ? tensors.weights->dtype : Dtype::f32);
  TRY_ASSIGN(const Choices choices, read_choices(tensors, routing, found.output_rows));
  found.output_rows += routing.rows;
  for (size_t row = 0; row < routing.rows; ++row) {
    const auto part = [&](const auto& values) { return std::span(values).subspan(row * routing.top_k, routing.top_k); };
    const auto ids = part(choices.ids);
    const auto wanted_ids = part(choices.wanted_ids);
    if (!same_experts(ids, wanted_ids)) ++found.found.tokens_routed_otherwise;
    sums.add(row_of(ids, part(choices.weights), config_.experts),
             row_of(wanted_ids, part(choices.wanted_weights), config_.experts));
  }
  return {};
}

}  // namespace dspack::runtime
