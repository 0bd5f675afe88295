#include "runtime/generate/device_choice.h"

#include <fmt/format.h>

#include <charconv>

#include "kernels/load_cuda.h"

namespace dspack::runtime {

namespace {

kernels::CudaOptions cuda_options(const DeviceOptions& options) {
  // A share waits for the plan, which knows the card.
  const bool is_number = options.vram && !options.vram->percent;
  return {.index = options.gpu,
          .precision = options.precision,
          .vram_bytes = is_number ? options.vram->number : 0,
          .cublaslt = options.cublaslt};
}

}  // namespace

bool parse_device(std::string_view text, DeviceOptions& into) {
  constexpr std::string_view kNumbered = "cuda:";
  into.gpu = 0;
  if (text.starts_with(kNumbered)) {
    const std::string_view number = text.substr(kNumbered.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), into.gpu);
    into.kind = DeviceKind::cuda;
    return error == std::errc() && end == number.data() + number.size();
  }
  if (text == "auto") {
    into.kind = DeviceKind::automatic;
  } else if (text == "cpu") {
    into.kind = DeviceKind::cpu;
  } else {
    into.kind = DeviceKind::cuda;
    return text == "cuda";
  }
  return true;
}

VramLimits ChosenDevice::vram_limits() const {
  DSPACK_CHECK(is_gpu(), "the CPU has no memory of its own");
  VramLimits limits{.device = std::string(gpu_->description()),
                    .card_bytes = before_.total_bytes,
                    .free_bytes = before_.free_bytes,
                    .asked_bytes = {},
                    // The CPU computes layers where they are faster than they cross the link.
                    .may_stream = !may_use_host()};
  if (vram_) limits.asked_bytes = vram_->of(before_.total_bytes);
  return limits;
}

void ChosenDevice::use_host(const std::string& reason) {
  DSPACK_CHECK(may_use_host(), "a GPU that was asked for");
  queue_.reset();
  gpu_.reset();
  queue_ = host_->make_queue();
  note_ = fmt::format("device: {}; no GPU: {}", host_->description(), reason);
}

Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu) {
  ChosenDevice chosen;
  chosen.is_automatic_ = options.kind == DeviceKind::automatic;
  chosen.precision_ = options.precision;
  chosen.vram_ = options.vram;
  kernels::CpuOptions host = cpu;
  // Beside a GPU the CPU computes what that lacks, exactly.
  if (options.kind == DeviceKind::cpu) host.precision = options.precision;
  TRY_ASSIGN(chosen.host_, kernels::make_cpu_device(host));
  chosen.queue_ = chosen.host_->make_queue();
  if (options.kind == DeviceKind::cpu) return chosen;
  auto gpu =
      options.open_gpu ? options.open_gpu() : kernels::load_cuda_device(options.cuda_library, cuda_options(options));
  if (gpu) {
    chosen.gpu_ = std::move(*gpu);
    chosen.before_ = chosen.gpu_->memory();  // before the queue takes any of it: what is asked for is for both
    chosen.queue_ = chosen.gpu_->make_queue();
    if (chosen.is_automatic_) chosen.note_ = fmt::format("device: {}", chosen.gpu_->description());
    return chosen;
  }
  if (!chosen.is_automatic_) {
    return Error{gpu.error().kind,
                 fmt::format("--device cuda: {} (--device cpu runs without a GPU)", gpu.error().message)};
  }
  chosen.note_ = fmt::format("device: {}; no GPU: {}", chosen.host_->description(), gpu.error().message);
  return chosen;
}

}  // namespace dspack::runtime
