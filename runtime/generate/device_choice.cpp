#include "runtime/generate/device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "format/base/foreign_text.h"
#include "format/base/near_word.h"
#include "kernels/load_cuda.h"

namespace dspack::runtime {

namespace {

kernels::CudaOptions cuda_options(const DeviceOptions& options, size_t place) {
  // A share is resolved later, by the plan, which knows the card.
  const bool is_number = options.vram && !options.vram->percent;
  return {.index = options.gpus[place],
          .precision = options.precision_on(true),
          .vram_bytes = is_number ? options.vram->number : 0,
          .cublaslt = options.cublaslt};
}

Result<std::unique_ptr<kernels::Device>> open_gpu(const DeviceOptions& options, size_t place) {
  if (options.open_gpu) return options.open_gpu(place);
  return kernels::load_cuda_device(options.cuda_library, cuda_options(options, place));
}

Error no_device(std::string_view text) {
  static const std::vector<std::string> kNames{"auto", "cpu", "cuda", "cuda:0", "cuda:0,1"};
  return {ErrorKind::invalid, fmt::format("{} is no device; there are auto, cpu, cuda, cuda:N and cuda:N,M{}",
                                          quote(text), format::did_you_mean(text, kNames))};
}

/// "0,1"
Result<std::vector<unsigned>> parse_gpus(std::string_view text, std::string_view all) {
  std::vector<unsigned> gpus;
  for (const char* next = text.data();; ++next) {
    const char* const last = text.data() + text.size();
    unsigned number = 0;
    const auto [end, error] = std::from_chars(next, last, number);
    if (error != std::errc() || (end != last && *end != ',')) return no_device(all);
    if (std::ranges::find(gpus, number) != gpus.end()) {
      return Error{ErrorKind::invalid, fmt::format("{} names GPU {} twice; each computes once", quote(all), number)};
    }
    gpus.push_back(number);
    if (end == last) return gpus;
    next = end;
  }
}

}  // namespace

Result<void> parse_device(std::string_view text, DeviceOptions& into) {
  constexpr std::string_view kNumbered = "cuda:";
  into.gpus = {0};
  into.kind = text == "auto" ? DeviceKind::automatic : text == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  if (text.starts_with(kNumbered)) {
    TRY_ASSIGN(into.gpus, parse_gpus(text.substr(kNumbered.size()), text));
    return {};
  }
  if (text != "auto" && text != "cpu" && text != "cuda") return no_device(text);
  return {};
}

VramLimits ChosenDevice::vram_limits() const {
  DSPACK_CHECK(is_gpu(), "the CPU has no memory of its own");
  return limits_of(*gpu_, before_);
}

std::vector<VramLimits> ChosenDevice::further_limits() const {
  std::vector<VramLimits> limits;
  for (const Further& further : further_)
    limits.push_back(limits_of(*further.device, further.before));
  return limits;
}

VramLimits ChosenDevice::limits_of(const kernels::Device& device, const kernels::DeviceMemory& before) const {
  VramLimits limits{.device = std::string(device.description()),
                    .card_bytes = before.total_bytes,
                    .free_bytes = before.free_bytes,
                    .asked_bytes = {},
                    // If the CPU may replace the GPU, it computes layers faster than the link copies them.
                    .may_stream = !may_use_host()};
  if (vram_) limits.asked_bytes = vram_->of(before.total_bytes);
  return limits;
}

void ChosenDevice::drop_further(std::string_view reason) {
  if (further_.empty()) return;
  note_ = fmt::format("{}{} further GPU{} not used: {}", note_.empty() ? "device: " : note_ + "; ", further_.size(),
                      further_.size() == 1 ? " is" : "s are", reason);
  further_.clear();
}

std::string ChosenDevice::description() const {
  std::string text(device().description());
  const bool are_alike = std::ranges::all_of(
      further_, [&](const Further& further) { return further.device->description() == device().description(); });
  if (are_alike && !further_.empty()) return text + fmt::format("; {} more like it for experts", further_.size());
  for (const Further& further : further_)
    text += fmt::format("; for experts {}", further.device->description());
  return text;
}

Result<void> ChosenDevice::use_host(const std::string& reason) {
  DSPACK_CHECK(may_use_host(), "a GPU that was asked for");
  queue_.reset();
  further_.clear();
  gpu_.reset();
  TRY(compute_on_host());
  note_ = fmt::format("device: {}; no GPU: {}", host_->description(), reason);
  return {};
}

Result<void> ChosenDevice::compute_on_host() {
  precision_ = cpu_.precision;
  TRY_ASSIGN(host_, kernels::make_cpu_device(cpu_));
  queue_ = host_->make_queue();
  return {};
}

Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu) {
  ChosenDevice chosen;
  chosen.is_automatic_ = options.kind == DeviceKind::automatic;
  chosen.vram_ = options.vram;
  chosen.cpu_ = cpu;
  chosen.cpu_.precision = options.precision_on(false);
  if (options.kind == DeviceKind::cpu) {
    TRY(chosen.compute_on_host());
    return chosen;
  }
  auto gpu = open_gpu(options, 0);
  for (size_t place = 1; gpu && place < options.gpus.size(); ++place) {
    auto further = open_gpu(options, place);
    if (!further) gpu = further.error();
    if (!further) break;
    const kernels::DeviceMemory before = (*further)->memory();
    chosen.further_.push_back({.device = std::move(*further), .before = before});
  }
  if (gpu) {
    // Beside a GPU, the CPU computes experts that the GPU lacks, exactly.
    TRY_ASSIGN(chosen.host_, kernels::make_cpu_device(cpu));
    chosen.precision_ = options.precision_on(true);
    chosen.gpu_ = std::move(*gpu);
    chosen.before_ = chosen.gpu_->memory();  // before the queue uses any: a requested limit covers both
    chosen.queue_ = chosen.gpu_->make_queue();
    if (chosen.is_automatic_) chosen.note_ = fmt::format("device: {}", chosen.gpu_->description());
    return chosen;
  }
  if (!chosen.is_automatic_) {
    return Error{gpu.error().kind,
                 fmt::format("--device cuda: {} (--device cpu runs without a GPU)", gpu.error().message)};
  }
  TRY(chosen.compute_on_host());
  // Without a driver no GPU is expected.
  if (options.has_driver()) {
    chosen.note_ = fmt::format("device: {}; no GPU: {}", chosen.host_->description(), gpu.error().message);
  }
  return chosen;
}

}  // namespace dspack::runtime
