#include "runtime/cli/model_options.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/near_word.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxContextPositions = 1U << 26U;
constexpr unsigned kMaxThreads = 4096;

Result<format::LayerSelection> parse_layer_selection(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first != std::string_view::npos && text[first] == '(') {
    TRY_ASSIGN(auto ratio, format::parse_ratio_repeat(text));
    return format::LayerSelection(std::move(ratio));
  }
  TRY_ASSIGN(auto layers, format::parse_layers(text));
  return format::LayerSelection(std::move(layers));
}

/// Like parse_memory_amount, but rejects sizes of only a few bytes as probable mistakes.
Result<Amount> parse_memory_option(std::string_view text) {
  if (!text.ends_with('%')) TRY(format::parse_large_size(text));
  return parse_memory_amount(text);
}

Result<IoMethod> parse_io(std::string_view name) {
  if (const auto method = parse_io_method(name)) return *method;
  return format::none_of(name, {"auto", "direct", "buffered", "mmap", "in-place"});
}

void add_pass_options(format::OptionTable& table, LoadOptions& load, const std::string& about_context) {
  table.heading("Model");
  table.add("--ctx", "N", load.context, format::count_between(1U, kMaxContextPositions),
            about_context.empty() ? "Positions to keep room for, as 4096 or 32k, which is 32768 (default: what the "
                                    "model allows, at most 4096)"
                                  : about_context);
  table.add("--layers", "0-3,2-5", load.layers, parse_layer_selection,
            "Run these layers in this order; repeated ones share their weights. Or by shares of the depth: "
            "\"(0,.5),(.3,1)\" (docs/layer-maps.md)");
}

auto one_of_cache_types() {
  return format::one_of<Dtype>(
      {{"f32", Dtype::f32}, {"bf16", Dtype::bf16}, {"f16", Dtype::f16}, {"fp8", Dtype::f8_e4m3}});
}

void add_memory_options(format::OptionTable& table, LoadOptions& load) {
  table.heading("Memory");
  table.add(
      "--ram", "BYTES|%", load.memory.ram, parse_memory_option,
      "Upper bound on the memory of the whole process: 24GB, 8G, 50% of the machine's (default: what is available)");
  table.add("--experts", "N|%", load.memory.experts, parse_expert_amount,
            "Most routed experts in memory at once (default: as many as fit)");
  table.add("--kv-dtype", "NAME", load.memory.kv_dtype, one_of_cache_types(),
            "Element type of the KV cache: f32 (exact), bf16 or f16 (half the memory), fp8 (28 %; docs/experts.md). "
            "Default: f32, or fp8 with --precision fp8, bf16 with --precision split, which takes no other");
  table.add("--index-dtype", "NAME", load.memory.index_dtype, one_of_cache_types(),
            "The same for the keys by which sparse attention (DeepSeek-V3.2, GLM-5) chooses positions (default: as "
            "--kv-dtype; docs/experts.md)");
}

Result<void> take_precision(std::string_view name, DeviceOptions& device) {
  device.precision = kernels::parse_precision(name);
  if (device.precision || name == "auto") return {};
  std::vector<std::string> names(kernels::kPrecisionNames.begin(), kernels::kPrecisionNames.end());
  names.emplace_back("auto");
  return format::none_of(name, names);
}

// "0" is allowed here: experts then only pass through.
Result<Amount> parse_vram_experts(std::string_view text) {
  if (text == "0" || text == "0%") return Amount{};
  return parse_expert_amount(text);
}

Error for_a_gpu(std::string_view option) {
  return invalid(fmt::format("{} is for a GPU; leave it out, or use --device cuda", option));
}

void add_device_options(format::OptionTable& table, DeviceOptions& device) {
  device.kind = DeviceKind::automatic;
  const auto take_device = [&device](const std::string& text) { return parse_device(text, device); };
  table.heading("Device");
  table.take("--device", "NAME", take_device,
             "What computes: cpu, cuda (the first GPU), cuda:N, several GPUs as cuda:0,1 (name all that may be used: "
             "the first has the layers, all have experts), or auto (default: a GPU that has room for a token's layers, "
             "else the CPU; docs/cuda.md)");
  table.add("--vram", "BYTES|%", device.vram, parse_memory_option,
            "Upper bound on the memory of each GPU for this run: 24GB, 50% of the card's (default: what is free)");
  table.add(
      "--vram-experts", "N|%", device.vram_experts, parse_vram_experts,
      "Routed experts that each GPU's memory keeps: a number, 25% of all (default: as many as fit; of a model over a "
      "network those that routers pick)");
  table.take(
      "--precision", "NAME", [&device](const std::string& name) { return take_precision(name, device); },
      fmt::format(
          "How exactly products are computed: exact; split, on a GPU, exact but for the order and rounding of "
          "attention's sums on tensor cores; bf16, inputs rounded to BF16; int8, on a CPU, those of four-bit and "
          "integer weights to eight bits, the rest as bf16; amx, on a CPU, as bf16 by AMX tiles in their own "
          "order of sums; fp8, on a GPU, inputs rounded to FP8; auto, bf16 on a CPU and exact on a GPU. "
          "Default: {} (docs/validation.md has what each rounds)",
          device.precision ? kernels::to_string(*device.precision) : "auto"));
  table.flag("--deterministic", device.miss.is_deterministic,
             "The same text in every run: no measured rate decides where an expert is computed");
  table.dev("miss", "auto|move|compute", device.miss.mode,
            format::one_of<MissMode>(
                {{"auto", MissMode::automatic}, {"move", MissMode::move}, {"compute", MissMode::compute}}),
            "an expert that the GPU lacks is copied there (move) or computed by the CPU (compute); auto (default): "
            "whichever is estimated to finish first");
  table.dev("cuda-library", "FILE", device.cuda_library, "libdspack_cuda.so (default: the one beside the program)");
  table.dev("cublaslt", "FILE|off", device.cublaslt,
            "libcublasLt for long prompts in precisions bf16 and fp8, or off (default: .so.13 or .so.12, where the "
            "system's loader finds them)");
}

void add_reading_options(format::OptionTable& table, LoadOptions& load) {
  add_cache_options(table, load.remote);
  add_absent_option(table, load.remote);
  add_config_option(table, load.remote);
  table.flag("--verify", load.verify, "Check every expert against its digest when it is read");
  table.dev("io", "auto|direct|buffered|mmap|in-place", load.io, parse_io,
            "how weights are read from a disk (default: auto, by a short measurement)");
}

}  // namespace

void add_model_options(format::OptionTable& table, LoadOptions& load, const std::string& about_context) {
  add_pass_options(table, load, about_context);
  add_memory_options(table, load);
  add_device_options(table, load.device);
  table.add("--threads", "N", load.threads, format::between(1U, kMaxThreads),
            "Threads (default: one per core); results do not depend on it");
  table.dev("cpu", "scalar|neon|neondot|avx2|avxvnni|avx512|avx512vnni|vbmi|avx512bf16|amx", load.instruction_set,
            "instruction set (default: the widest)");
  add_reading_options(table, load);
}

Result<void> check_model_options(const LoadOptions& load) {
  const DeviceOptions& device = load.device;
  const kernels::Precision precision = device.precision_on(device.kind != DeviceKind::cpu);
  const bool is_split = precision == kernels::Precision::split;
  if ((is_split || precision == kernels::Precision::fp8) && device.kind != DeviceKind::cuda) {
    return invalid(fmt::format("--precision {}: a CPU computes exact, bf16, int8 or amx; add --device cuda",
                               kernels::to_string(precision)));
  }
  const bool is_for_cpus = precision == kernels::Precision::amx || precision == kernels::Precision::int8;
  if (is_for_cpus && device.kind == DeviceKind::cuda) {
    return invalid(fmt::format("--precision {}: only a CPU has it; a GPU computes exact, split, bf16 or fp8",
                               kernels::to_string(precision)));
  }
  if (is_split && load.memory.kv_dtype.value_or(Dtype::bf16) != Dtype::bf16) {
    return invalid(
        "--precision split: only a BF16 cache goes through tensor cores without being rounded; leave out --kv-dtype, "
        "or use --precision exact");
  }
  if (precision != kernels::Precision::exact && device.kind == DeviceKind::automatic) {
    return invalid("--precision: name the device whose results are wanted, --device cpu or cuda");
  }
  if (!device.cublaslt.empty() && kernels::besides_attention(precision) == kernels::Precision::exact) {
    return invalid(fmt::format("--dev cublaslt: precision {} has no use for it; add --precision bf16 or fp8",
                               kernels::to_string(precision)));
  }
  if (device.kind != DeviceKind::cpu) return {};
  if (device.vram) return for_a_gpu("--vram");
  if (!device.cuda_library.empty()) return for_a_gpu("--dev cuda-library");
  if (device.vram_experts) return for_a_gpu("--vram-experts");
  if (device.miss.mode != MissMode::automatic) return for_a_gpu("--dev miss");
  return {};
}

Result<std::string> parse_policy(std::string_view name, std::span<const NamedPolicy> policies) {
  std::vector<std::string> names;
  for (const NamedPolicy& policy : policies) {
    names.emplace_back(policy.name);
    if (policy.name == name) return names.back();
  }
  return format::none_of(name, names);
}

void add_route_options(format::OptionTable& table, LoadOptions& load) {
  table.heading("Reports");
  table.add("--trace", "FILE.jsonl", load.route_trace, "Record which experts the router picks, for dsrun replay");
  table.dev(
      "policy", "NAME", load.policy, [](std::string_view name) { return parse_policy(name, eviction_policies()); },
      "which expert leaves when slots are short (dsrun replay --help lists them)");
}

}  // namespace dspack::runtime
