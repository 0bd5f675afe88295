#include <doctest/doctest.h>

#include "runtime/cli/verbs.h"

namespace dspack::runtime::device_options_test {
namespace {

// Of dsrun dir -p x and these; the text of a mistake otherwise.
std::variant<DeviceOptions, std::string> device_of(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"dir", "-p", "x"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const format::CommandLine command = format::parse_command_line(dsrun_program(), arguments);
  if (!command.verb) {
    CHECK(command.status == 2);
    return command.text;
  }
  return std::any_cast<std::shared_ptr<RunOptions>>(command.verb->options)->load.device;
}

DeviceOptions parsed(const std::vector<std::string>& more) {
  auto device = device_of(more);
  if (const auto* text = std::get_if<std::string>(&device)) FAIL(*text);
  return std::get<DeviceOptions>(device);
}

std::string mistake(const std::vector<std::string>& more) {
  auto device = device_of(more);
  REQUIRE(std::holds_alternative<std::string>(device));
  return std::get<std::string>(device);
}

TEST_CASE("command line: the device") {
  CHECK(parsed({}).kind == DeviceKind::automatic);
  CHECK(parsed({"--device", "auto"}).kind == DeviceKind::automatic);
  CHECK(parsed({"--device", "cpu"}).kind == DeviceKind::cpu);
  CHECK(parsed({"--device", "cuda"}).kind == DeviceKind::cuda);
  CHECK(parsed({"--device", "cuda"}).gpus == std::vector<unsigned>{0});
  CHECK(parsed({"--device", "cuda:3"}).kind == DeviceKind::cuda);
  CHECK(parsed({"--device", "cuda:3"}).gpus == std::vector<unsigned>{3});
  CHECK(parsed({"--device", "cuda:2,0,1"}).gpus == std::vector<unsigned>{2, 0, 1});
  CHECK(mistake({"--device", "cuda:0,0"}).find("\"cuda:0,0\" names GPU 0 twice") != std::string::npos);
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU", "", "cuda:0,",
                            "cuda:,1", "cuda:0,,1", "cuda:0 1", "cuda,1"}) {
    CAPTURE(wrong);
    CHECK(mistake({"--device", wrong}).find("--device") != std::string::npos);
  }
}

TEST_CASE("command line: what a GPU may take and how exact it is") {
  const DeviceOptions device = parsed(
      {"--device", "cuda", "--vram", "40GB", "--precision", "bf16", "--dev", "cuda-library=l", "--dev", "cublaslt=b"});
  CHECK(device.vram == Amount{.number = 40'000'000'000, .percent = {}});
  CHECK(device.precision == kernels::Precision::bf16);
  CHECK(device.cuda_library == "l");
  CHECK(device.cublaslt == "b");
  CHECK(parsed({"--vram", "50%"}).vram == Amount{.number = 0, .percent = 50});
  CHECK(parsed({"--device", "cuda", "--precision", "fp8"}).precision == kernels::Precision::fp8);
  CHECK(parsed({"--device", "cuda", "--precision", "split"}).precision == kernels::Precision::split);
  CHECK(parsed({"--device", "cuda", "--precision", "split", "--kv-dtype", "bf16"}).precision ==
        kernels::Precision::split);
  CHECK(parsed({"--precision", "exact"}).precision == kernels::Precision::exact);
  CHECK_FALSE(parsed({}).precision);
  CHECK_FALSE(parsed({"--precision", "auto"}).precision);
  CHECK(parsed({"--device", "cpu", "--precision", "exact"}).kind == DeviceKind::cpu);
  CHECK(mistake({"--device", "cuda", "--precision", "fp4"}).find("--precision") != std::string::npos);
  CHECK(mistake({"--vram", "0%"}).find("--vram") != std::string::npos);
}

TEST_CASE("command line: precision split has a cache that tensor cores do not round") {
  for (const char* dtype : {"f32", "f16", "fp8"}) {
    CAPTURE(dtype);
    CHECK(mistake({"--device", "cuda", "--precision", "split", "--kv-dtype", dtype})
              .find("--precision split: only a "
                    "BF16 cache") != std::string::npos);
  }
}

TEST_CASE("command line: a CPU has no memory of its own, no precision fp8 or split, and needs no library") {
  for (const char* kind : {"cpu", "auto"}) {
    CHECK(mistake({"--device", kind, "--precision", "split"}).find("--precision split: a CPU computes") !=
          std::string::npos);
  }
  CHECK(mistake({"--device", "cpu", "--precision", "fp8"}).find("--device cuda") != std::string::npos);
  CHECK(mistake({"--precision", "bf16"}).find("--device cpu or cuda") != std::string::npos);
  CHECK(parsed({"--device", "cpu", "--precision", "bf16"}).precision == kernels::Precision::bf16);
  CHECK(mistake({"--precision", "fp8"}).find("--device cuda") != std::string::npos);
  CHECK(mistake({"--device", "cpu", "--vram", "1GB"}).find("--vram") != std::string::npos);
  CHECK(mistake({"--dev", "cuda-library=l", "--device", "cpu"}).find("cuda-library") != std::string::npos);
  CHECK(mistake({"--dev", "cublaslt=b", "--device", "cuda"}).find("--precision bf16") != std::string::npos);
  CHECK(mistake({"--dev", "cublaslt=b", "--device", "cuda", "--precision", "split"}).find("--precision bf16") !=
        std::string::npos);
}

TEST_CASE("command line: experts in a GPU's memory, and what becomes of the others") {
  const auto vram = [](const char* amount) {
    return parsed({"--device", "cuda", "--vram-experts", amount}).vram_experts;
  };
  CHECK_FALSE(parsed({"--device", "cuda"}).vram_experts);
  CHECK(vram("464") == Amount{.number = 464, .percent = {}});
  CHECK(vram("25%") == Amount{.number = 0, .percent = 25});
  CHECK(vram("0") == Amount{});
  CHECK(vram("0%") == Amount{});
  CHECK(vram("100%") == Amount{.number = 0, .percent = 100});
  CHECK(parsed({"--vram-experts", "7"}).kind == DeviceKind::automatic);
  for (const char* wrong : {"", "x", "-1", "5GB", "101%", "-5%", "0x10", "1.5", "%", "18446744073709551616"}) {
    CAPTURE(wrong);
    CHECK(mistake({"--device", "cuda", "--vram-experts", wrong}).find("--vram-experts") != std::string::npos);
  }
  const auto miss = [](const std::vector<std::string>& more) { return parsed(more).miss; };
  CHECK(miss({}).mode == MissMode::automatic);
  CHECK_FALSE(miss({}).is_deterministic);
  CHECK(miss({"--dev", "miss=auto"}).mode == MissMode::automatic);
  CHECK(miss({"--device", "cuda", "--dev", "miss=move"}).mode == MissMode::move);
  CHECK(miss({"--device", "cuda", "--dev", "miss=compute"}).mode == MissMode::compute);
  CHECK(miss({"--deterministic"}).is_deterministic);
  CHECK(mistake({"--dev", "miss=copy"}).find("miss") != std::string::npos);
  CHECK(mistake({"--dev", "miss="}).find("miss") != std::string::npos);
}

TEST_CASE("command line: a CPU has no tier above its memory") {
  CHECK(mistake({"--device", "cpu", "--vram-experts", "5"}).find("--vram-experts is for a GPU") != std::string::npos);
  CHECK(mistake({"--device", "cpu", "--dev", "miss=move"}).find("--dev miss is for a GPU") != std::string::npos);
  CHECK(mistake({"--device", "cpu", "--dev", "miss=compute"}).find("--dev miss is for a GPU") != std::string::npos);
  // What a CPU does is what these ask for.
  CHECK(parsed({"--device", "cpu", "--dev", "miss=auto", "--deterministic"}).kind == DeviceKind::cpu);
}

TEST_CASE("command line: every verb that loads a model knows devices") {
  const auto device = []<class Options>(const Options& /*kind*/, const std::vector<std::string>& arguments) {
    const format::CommandLine command = format::parse_command_line(dsrun_program(), arguments);
    REQUIRE(command.verb);
    return std::any_cast<std::shared_ptr<Options>>(command.verb->options)->load.device;
  };
  // What others are compared with is exact.
  CHECK(device(LogitsOptions(), {"logits", "d", "--tokens", "1", "--out", "o"}).precision == kernels::Precision::exact);
  CHECK(device(EvalOptions(), {"eval", "d", "--text", "t"}).precision == kernels::Precision::exact);
  CHECK(device(RecordOptions(), {"record", "d", "--tokens", "1", "--out", "o"}).precision == kernels::Precision::exact);
  CHECK(device(CompareOptions(), {"compare", "d", "--reference", "r"}).precision == kernels::Precision::exact);
  CHECK_FALSE(device(PlanOptions(), {"plan", "d"}).precision);
  CHECK_FALSE(device(LogitsOptions(), {"logits", "d", "--tokens", "1", "--out", "o", "--precision", "auto"}).precision);
  CHECK(device(LogitsOptions(), {"logits", "d", "--tokens", "1", "--out", "o", "--device", "cuda:1"}).gpus ==
        std::vector<unsigned>{1});
  CHECK(device(EvalOptions(), {"eval", "d", "--text", "t", "--device", "cuda:1"}).gpus == std::vector<unsigned>{1});
  CHECK(device(RecordOptions(), {"record", "d", "--tokens", "1", "--out", "o", "--device", "cuda:1"}).gpus ==
        std::vector<unsigned>{1});
  CHECK(device(CompareOptions(), {"compare", "d", "--reference", "r", "--device", "cuda:1"}).gpus ==
        std::vector<unsigned>{1});
  CHECK(device(PlanOptions(), {"plan", "d", "--device", "cuda:1"}).gpus == std::vector<unsigned>{1});
}

TEST_CASE("device: that no GPU computes is a remark where there is a driver") {
  for (const bool has_driver : {false, true}) {
    DeviceOptions options;
    options.kind = DeviceKind::automatic;
    options.open_gpu = [](size_t) -> Result<std::unique_ptr<kernels::Device>> {
      return Error{ErrorKind::not_found, "the driver is too old"};
    };
    options.has_driver = [has_driver] { return has_driver; };
    const auto chosen = choose_device(options, {.threads = 1, .instruction_set = {}});
    REQUIRE(chosen.has_value());
    CHECK_FALSE(chosen->is_gpu());
    CHECK((chosen->note().find("no GPU: the driver is too old") != std::string::npos) == has_driver);
    CHECK(chosen->note().empty() != has_driver);
    CHECK(chosen->precision() == kernels::Precision::exact);
    options.precision.reset();
    CHECK(choose_device(options, {.threads = 1, .instruction_set = {}})->precision() == kernels::Precision::bf16);
    options.kind = DeviceKind::cuda;  // by name
    CHECK(choose_device(options, {.threads = 1, .instruction_set = {}}).error().message.find("too old") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace dspack::runtime::device_options_test
