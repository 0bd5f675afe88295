#include "runtime/validation/recording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "format/base/size.h"
#include "runtime/validation/module_names.h"
#include "runtime/weights/host_rows.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {
namespace {

// Prefix that multimodal models put before the names of their language model.
constexpr std::string_view kLanguageModel = "language_model.";

template <class Stored, class Value>
std::vector<Value> values_of(std::span<const std::byte> bytes) {
  std::vector<Stored> stored(bytes.size() / sizeof(Stored));
  std::ranges::copy(bytes.first(stored.size() * sizeof(Stored)), std::as_writable_bytes(std::span(stored)).begin());
  return {stored.begin(), stored.end()};
}

std::vector<int64_t> widened(Dtype dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case Dtype::i64: return values_of<int64_t, int64_t>(bytes);
    case Dtype::i32: return values_of<int32_t, int64_t>(bytes);
    case Dtype::u32: return values_of<uint32_t, int64_t>(bytes);
    case Dtype::i16: return values_of<int16_t, int64_t>(bytes);
    case Dtype::u16: return values_of<uint16_t, int64_t>(bytes);
    case Dtype::i8: return values_of<int8_t, int64_t>(bytes);
    default: return values_of<uint8_t, int64_t>(bytes);
  }
}

constexpr uint64_t kMetadataBytes = 4096;

// At most this many tensors in the file. At most tokens * top_k routed experts are used in a layer.
uint64_t most_tensors(const std::set<std::string, std::less<>>& wanted, const Model& model, uint64_t tokens) {
  constexpr uint64_t kTensors = 4;  // per module: one input, up to three outputs
  constexpr uint64_t kModules = 4;  // per expert
  const auto routed = static_cast<uint64_t>(std::ranges::count_if(wanted, is_routed));
  const uint64_t met = tokens * model.config().top_k * kModules * model.layer_map().size();
  return 1 + kTensors * (wanted.size() - routed) + 2 * std::min(routed, met);
}

}  // namespace

bool is_number(Dtype dtype) {
  return dtype == Dtype::f64 || dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

bool is_integer(Dtype dtype) {
  constexpr std::array kTypes = {Dtype::i64, Dtype::i32, Dtype::u32, Dtype::i16, Dtype::u16, Dtype::i8, Dtype::u8};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

uint64_t value_count(const format::TensorInfo& tensor) {
  return tensor.data.size() * 8 / bits_of(tensor.dtype);
}

bool has_width(const format::TensorInfo& tensor, uint64_t cols) {
  return !tensor.shape.empty() && tensor.shape.back() == cols;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<Recording> Recording::open(format::FileSystem& files, const format::Path& path) {
  constexpr uint64_t kLengthBytes = 8;
  Recording recording;
  recording.path_ = path.string();
  TRY_ASSIGN(recording.file_, files.open_read(path));
  const uint64_t size = recording.file_->size_bytes();
  std::string text(std::min(size, kLengthBytes), '\0');
  TRY(recording.file_->read(0, std::as_writable_bytes(std::span(text))));
  const auto length = format::parse_header_length(text, size);
  if (!length) return length.error().in(recording.path_);
  text.resize(*length);
  TRY(recording.file_->read(kLengthBytes, std::as_writable_bytes(std::span(text))));
  auto header = format::parse_header(text, size);
  if (!header) return header.error().in(recording.path_);
  recording.data_start_ = header->data_start;
  std::vector<format::TensorInfo> within;
  for (format::TensorInfo& tensor : header->tensors) {
    std::string name = tensor.name;
    if (name.starts_with(kLanguageModel)) {
      within.push_back(std::move(tensor));
    } else {
      recording.tensors_.emplace(std::move(name), std::move(tensor));
    }
  }
  for (format::TensorInfo& tensor : within) {
    std::string name = tensor.name.substr(kLanguageModel.size());
    if (recording.tensors_.contains(name)) name = tensor.name;
    tensor.name = name;
    recording.tensors_.emplace(std::move(name), std::move(tensor));
  }
  return recording;
}

const format::TensorInfo* Recording::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<std::vector<std::byte>> Recording::read(const format::TensorInfo& tensor, uint64_t first, uint64_t count) const {
  DSPACK_CHECK(first <= value_count(tensor) && count <= value_count(tensor) - first, tensor.name + ": read beyond it");
  const uint64_t width = bytes_of(tensor.dtype, 1);
  std::vector<std::byte> bytes(count * width);
  TRY(file_->read(data_start_ + tensor.data.begin + first * width, bytes));
  return bytes;
}

Result<std::vector<double>> Recording::numbers(const format::TensorInfo& tensor, uint64_t first, uint64_t count) const {
  DSPACK_CHECK(is_number(tensor.dtype), tensor.name + ": no numbers");
  TRY_ASSIGN(const std::vector<std::byte> bytes, read(tensor, first, count));
  if (tensor.dtype == Dtype::f64) return values_of<double, double>(bytes);
  std::vector<float> values(count);
  format::widen_to_f32(tensor.dtype, bytes, values);
  return std::vector<double>(values.begin(), values.end());
}

Result<std::vector<int64_t>> Recording::integers(const format::TensorInfo& tensor, uint64_t first,
                                                 uint64_t count) const {
  DSPACK_CHECK(is_integer(tensor.dtype), tensor.name + ": no integers");
  TRY_ASSIGN(const std::vector<std::byte> bytes, read(tensor, first, count));
  return widened(tensor.dtype, bytes);
}

Result<std::optional<std::vector<uint32_t>>> Recording::input_ids() const {
  constexpr uint64_t kMaxTokens = 1U << 26;  // longer than any context
  const format::TensorInfo* tensor = find(kInputIds);
  if (tensor == nullptr) tensor = find(input_tensor("model.embed_tokens"));
  if (tensor == nullptr) return std::optional<std::vector<uint32_t>>();
  const std::string place = fmt::format("{}: tensor \"{}\"", path_, tensor->name);
  const uint64_t count = value_count(*tensor);
  const uint64_t longest = tensor->shape.empty() ? 0 : tensor->shape.back();
  if (!is_integer(tensor->dtype) || count == 0 || count != longest || count > kMaxTokens) {
    return Error{ErrorKind::invalid, fmt::format("{} is {} {}; the tokens of one prompt were expected", place,
                                                 to_string(tensor->dtype), shape_text(tensor->shape))};
  }
  TRY_ASSIGN(const std::vector<int64_t> stored, integers(*tensor, 0, count));
  for (const int64_t id : stored) {
    if (id < 0 || id > UINT32_MAX) return Error{ErrorKind::invalid, fmt::format("{}: {} is no token id", place, id)};
  }
  return std::optional(std::vector<uint32_t>(stored.begin(), stored.end()));
}

Result<std::unique_ptr<Recorder>> Recorder::create(kernels::Queue& queue, format::FileSystem& files, const Model& model,
                                                   const RecordPlan& plan) {
  std::unique_ptr<Recorder> made(new Recorder(queue, static_cast<uint32_t>(plan.tokens.size())));
  uint64_t longest = sizeof(kInputIds);
  for (std::string& name : module_names(model.config(), model.layer_map())) {
    const auto fits = [&](const std::string& pattern) { return matches_pattern(pattern, name); };
    if (!plan.patterns.empty() && std::ranges::none_of(plan.patterns, fits)) continue;
    longest = std::max<uint64_t>(longest, output_tensor(name).size() + sizeof(".0"));
    made->wanted_.insert(std::move(name));
  }
  if (made->wanted_.empty()) {
    return Error{ErrorKind::invalid,
                 "no module fits --modules; names look like model.layers.0.self_attn.o_proj, and * "
                 "stands for any characters"};
  }
  const uint64_t room = format::TensorFileWriter::header_room(most_tensors(made->wanted_, model, plan.tokens.size()),
                                                              longest, kMetadataBytes);
  TRY_ASSIGN(made->file_, format::TensorFileWriter::create(files, plan.path, room));
  const std::vector<int64_t> ids(plan.tokens.begin(), plan.tokens.end());
  made->append(kInputIds, Dtype::i64, {1, ids.size()}, std::as_bytes(std::span(ids)));
  TRY(made->status_);
  return made;
}

void Recorder::append(const std::string& tensor, Dtype dtype, const std::vector<uint64_t>& shape,
                      std::span<const std::byte> bytes) {
  if (!status_) return;
  const auto [place, is_new] = numbers_.try_emplace(tensor, 0);
  if (is_new) place->second = file_->add(tensor, dtype, shape);
  status_ = file_->append(place->second, bytes);
}

// Modules see [1, tokens, width], a batch of one; the router and the experts see rows without a batch dimension.
void Recorder::store(const std::string& tensor, std::string_view module, const kernels::Rows& rows,
                     uint32_t total_rows) {
  const bool has_batch = !is_router(module) && module.find(".mlp.experts") == std::string_view::npos;
  const std::vector<uint64_t> shape =
      has_batch ? std::vector<uint64_t>{1, total_rows, rows.cols} : std::vector<uint64_t>{total_rows, rows.cols};
  const std::vector<float> values = download_rows(queue_, rows);
  append(tensor, Dtype::f32, shape, std::as_bytes(std::span(values)));
}

void Recorder::input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (wanted_.contains(module)) store(input_tensor(module), module, rows, total_rows);
}

void Recorder::output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (wanted_.contains(module)) store(output_tensor(module), module, rows, total_rows);
}

// transformers' router returns (logits, weights, indices).
void Recorder::routing(std::string_view module, const Routing& routing) {
  if (!wanted_.contains(module)) return;
  const kernels::Rows weights{
      .data = routing.weights, .rows = routing.rows, .cols = routing.top_k, .stride = routing.top_k};
  store(fmt::format("{}.output.1", module), module, weights, tokens_);
  std::vector<uint32_t> ids(size_t{routing.rows} * routing.top_k);
  queue_.download(std::as_writable_bytes(std::span(ids)), routing.ids);
  queue_.synchronize();
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  append(fmt::format("{}.output.2", module), Dtype::i64, {tokens_, routing.top_k}, std::as_bytes(std::span(wide)));
}

Result<void> Recorder::seal(const std::map<std::string, std::string>& metadata) {
  TRY(status_);
  uint64_t bytes = 0;
  for (const auto& [key, value] : metadata)
    bytes += key.size() + value.size();
  DSPACK_CHECK(2 * bytes <= kMetadataBytes, "metadata of this length has no room");  // factor 2: JSON escapes
  return file_->seal(metadata);
}

}  // namespace dspack::runtime
