#include "runtime/cli/device_options.h"

#include "runtime/cli/memory_options.h"
#include "runtime/cli/tier_options.h"

namespace dspack::runtime {

void add_device_options(CLI::App& app, DeviceOptions& device) {
  device.kind = DeviceKind::automatic;
  const auto take_device = [&device](const std::string& text) {
    if (!parse_device(text, device)) {
      throw CLI::ValidationError("--device", "\"" + text + "\" is no device; there are auto, cpu, cuda and cuda:N");
    }
  };
  app.add_option_function<std::string>("--device", take_device,
                                       "What computes: cpu, cuda (the first GPU), cuda:N, or auto (default: a GPU that "
                                       "has room for a token's layers, else the CPU; docs/cuda.md)")
      ->type_name("NAME");
  add_amount(app, "--vram", parse_memory_amount, device.vram,
             "Most of the GPU's memory for this run: 24GB, 50% of the card's (default: what is free)")
      ->type_name("BYTES|%");
  app.add_option_function<std::string>(
         "--precision",
         [&device](const std::string& name) { device.precision = kernels::parse_precision(name).value(); },
         "How exactly a GPU computes: exact (default), bf16 or fp8; needs --device cuda")
      ->check(CLI::IsMember(std::vector<std::string>(kernels::kPrecisionNames.begin(), kernels::kPrecisionNames.end()))
                  .description(""))
      ->type_name("NAME");
  app.add_option("--cuda-library", device.cuda_library, "libdspack_cuda.so (default: the one beside the program)")
      ->type_name("FILE");
  app.add_option(
         "--cublaslt", device.cublaslt,
         "libcublasLt for long prompts in precisions bf16 and fp8, or off (default: .so.13 or .so.12, where the "
         "system's loader finds them)")
      ->type_name("FILE|off");
  add_tier_options(app, device);
}

std::string contradiction_of(const DeviceOptions& device) {
  if (device.precision != kernels::Precision::exact && device.kind != DeviceKind::cuda) {
    return "--precision: a CPU is always exact; add --device cuda";
  }
  if (!device.cublaslt.empty() && device.precision == kernels::Precision::exact) {
    return "--cublaslt: precision exact has no use for it; add --precision bf16 or fp8";
  }
  if (device.kind != DeviceKind::cpu) return {};
  if (device.vram) return "--vram is for a GPU; leave it out, or use --device cuda";
  if (!device.cuda_library.empty()) return "--cuda-library is for a GPU; leave it out, or use --device cuda";
  return tier_contradiction_of(device);
}

}  // namespace dspack::runtime
